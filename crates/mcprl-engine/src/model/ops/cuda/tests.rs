//! The kernels against those of the CPU and against composed operations.

use candle_core::Device;

use super::*;
use crate::model::{
    Positions, Segment, TokenTree,
    kernels::{Format, Heads},
    ops::{
        self, Activation, Attended, AttentionMask, Cache, CachedSegment, Gradients, KvFormat, TreeLayout,
        composed::force, read,
    },
};

/// Needs NVRTC, no device.
#[test]
fn kernels_compile_for_every_supported_device_and_head_width() {
    for capability in [80, 90] {
        Source::Elementwise.compile(capability).unwrap();
        for dim in attention::DIMS {
            for bf16 in [true, false] {
                Source::Attention { dim, bf16 }.compile(capability).unwrap();
            }
        }
    }
}

fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * i % 1009 + seed * 31) as f32 * 0.73).sin() * 2.0).collect()
}

fn tensor(rows: usize, columns: usize, seed: usize, device: &Device) -> Tensor {
    Tensor::from_vec(values(rows * columns, seed), (rows, columns), device).unwrap()
}

/// ‖found − expected‖ / ‖expected‖.
fn distance(found: &Tensor, expected: &Tensor) -> f32 {
    let (found, expected) = (read(found).unwrap(), read(expected).unwrap());
    assert_eq!(found.len(), expected.len());
    let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>();
    let off = squares(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
    (off / squares(&mut expected.iter().copied())).sqrt()
}

/// Needs an NVIDIA device.
mod on_a_device {
    use super::*;

    fn device() -> Device {
        let device = Device::new_cuda_with_stream(0).unwrap();
        prepare(device.as_cuda_device().unwrap()).unwrap();
        device
    }

    #[test]
    #[ignore = "needs a build with CUDA, and an NVIDIA device"]
    fn elementwise_kernels_match_those_of_the_cpu() {
        let gpu = device();
        for (rows, width) in [(37, 64), (5, 1024), (300, 96)] {
            let run = |device: &Device| -> Vec<Tensor> {
                let [x, dy, dx] = [1, 2, 3].map(|seed| tensor(rows, width, seed, device));
                let weight = Tensor::from_vec(values(width, 4), width, device).unwrap();
                let gradients = Gradients { slots: Vec::new() };
                let y = ops::rms_norm(&x, &weight, 1e-5).unwrap();
                ops::rms_norm_backward(&x, (&weight, None), 1e-5, &dy, &dx, &gradients).unwrap();
                let active = ops::gated(Activation::Silu, &x, &dy).unwrap();
                let (dgate, dup) = ops::gated_backward(Activation::Silu, &x, &dy, &y).unwrap();
                vec![y, dx, active, dgate, dup]
            };
            for (index, (found, expected)) in run(&gpu).iter().zip(&run(&Device::Cpu)).enumerate() {
                let off = distance(found, expected);
                assert!(off < 1e-5, "{index} of {rows} rows of {width}: {off}");
            }
        }
    }

    #[test]
    #[ignore = "needs a build with CUDA, and an NVIDIA device"]
    fn products_are_those_of_their_factors_and_add_to_what_is_there() {
        let gpu = device();
        // Few rows, low ranks, and neither.
        let sizes = [(33, 48, 20), (300, 40, 16), (300, 40, 200), (300, 200, 40)];
        let types = [DType::F32, DType::BF16, DType::F16];
        for (dtype, (m, k, n)) in types.iter().flat_map(|dtype| sizes.map(|size| (*dtype, size))) {
            let shapes = [
                (Product::Forward, (m, k), (n, k)),
                (Product::Backward, (m, k), (k, n)),
                (Product::Weight, (k, m), (k, n)),
            ];
            for (kind, a, b) in shapes {
                let (a, b) = (tensor(a.0, a.1, 1, &gpu), tensor(b.0, b.1, 2, &gpu).to_dtype(dtype).unwrap());
                let (rounded, wide) = (
                    a.to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap(),
                    b.to_dtype(DType::F32).unwrap(),
                );
                let expected = match kind {
                    Product::Forward => rounded.matmul(&wide.t().unwrap()),
                    Product::Backward => rounded.matmul(&wide),
                    Product::Weight => rounded.t().unwrap().contiguous().unwrap().matmul(&wide),
                };
                let expected = (expected.unwrap() * 0.5).unwrap();
                let found = product(kind, &a, &b, 0.5).unwrap();
                assert!(distance(&found, &expected) < 1e-5, "{kind:?} {dtype:?} {m} {k} {n}");
                add_product(&found, kind, &a, &b, 0.5).unwrap();
                assert!(
                    distance(&found, &(expected * 2.0).unwrap()) < 1e-5,
                    "{kind:?} {dtype:?} {m} {k} {n}, added"
                );
            }
        }
    }

    /// Sequences that branch after 60, 110 and 115 tokens.
    fn tree() -> TokenTree {
        let tokens =
            |count: u32, seed: u32| (0..count).map(|i| i * i % 83 + 100 * seed).collect::<Vec<u32>>();
        let (stem, left) = (tokens(60, 0), tokens(50, 1));
        let paths = [
            [&stem[..], &left, &tokens(140, 2)].concat(),
            [&stem[..], &left, &tokens(5, 3), &tokens(20, 4)].concat(),
            [&stem[..], &left, &tokens(5, 3), &tokens(9, 5)].concat(),
            [&stem[..], &tokens(33, 6)].concat(),
        ];
        TokenTree::new(&paths)
    }

    fn shapes() -> Vec<Heads> {
        let of = |query, kv, dim| Heads { query, kv, dim };
        vec![of(4, 2, 32), of(14, 2, 64), of(3, 3, 96), of(8, 2, 128)]
    }

    #[test]
    #[ignore = "needs a build with CUDA, and an NVIDIA device"]
    fn attention_over_a_tree_matches_composed_operations() {
        let (gpu, tree) = (device(), tree());
        let rows = tree.tokens.len();
        for heads in shapes() {
            let wide = |count: usize, seed| tensor(rows, count * heads.dim, seed, &gpu);
            let (q, k, v, dout) =
                (wide(heads.query, 1), wide(heads.kv, 2), wide(heads.kv, 3), wide(heads.query, 4));
            let run = || {
                let layout =
                    TreeLayout::new(&tree, KvFormat { heads, format: Format::Bf16, by_kernels: false });
                let Attended { out, lse } = layout.attend((&q, &k, &v), heads.into()).unwrap();
                let inputs = (&q, &k, &v);
                let (dq, dk, dv) =
                    layout.attend_backward(inputs, (&out, lse.as_ref()), &dout, heads.into()).unwrap();
                (lse.is_some(), [out, dq, dk, dv])
            };
            let (fused, found) = run();
            let _forced = force();
            let (composed, expected) = run();
            assert!(fused && !composed);
            for (name, (found, expected)) in ["out", "dq", "dk", "dv"].iter().zip(found.iter().zip(&expected))
            {
                let off = distance(found, expected);
                assert!(off < 1e-2, "{name} of {heads:?}: {off}");
            }
        }
    }

    #[test]
    #[ignore = "needs a build with CUDA, and an NVIDIA device"]
    fn attention_of_sampling_steps_matches_composed_operations() {
        let (gpu, tree) = (device(), tree());
        for heads in shapes() {
            for format in [Format::Bf16, Format::F16] {
                // In two steps: all segments but their last tokens, then these.
                let run = || -> Vec<Tensor> {
                    let kv_format = KvFormat { heads, format, by_kernels: false };
                    let mut caches: Vec<Cache> = tree.segments.iter().map(|_| kv_format.empty()).collect();
                    let step = |caches: &mut Vec<Cache>, last: bool| {
                        let (mut positions, mut parts) = (Vec::new(), Vec::new());
                        for segment in &tree.segments {
                            let cut = segment.rows.len() - 1;
                            let range = if last { cut..cut + 1 } else { 0..cut };
                            let start = positions.len();
                            positions.extend(range.map(|at| (segment.first + at) as u32));
                            parts.push(start..positions.len());
                        }
                        let wide = |count: usize, seed| {
                            tensor(positions.len(), count * heads.dim, seed + usize::from(last), &gpu)
                        };
                        let (q, k, v) = (wide(heads.query, 1), wide(heads.kv, 3), wide(heads.kv, 5));
                        for (cache, rows) in caches.iter_mut().zip(&parts) {
                            cache.extend((&k, &v), rows.clone(), 0, heads.into()).unwrap();
                        }
                        // With the rows of all segments below.
                        let rows = |index: usize| {
                            let of = &tree.segments[index].subtree;
                            let below =
                                |other: &&Segment| of.start <= other.rows.start && other.rows.end <= of.end;
                            let last = tree.segments.iter().filter(below).count() + index - 1;
                            parts[index].start..parts[last].end
                        };
                        let past = |(index, cache): (usize, _)| {
                            let first = tree.segments[index].first;
                            CachedSegment { rows: rows(index), first, cache }
                        };
                        let past: Vec<_> = caches.iter().enumerate().map(past).collect();
                        let mask = AttentionMask::new(kv_format);
                        ops::attend((&q, &k, &v), &positions, &past, heads.into(), &mask).unwrap()
                    };
                    vec![step(&mut caches, false), step(&mut caches, true)]
                };
                let found = run();
                let _forced = force();
                for (index, (found, expected)) in found.iter().zip(&run()).enumerate() {
                    let off = distance(found, expected);
                    assert!(off < 1e-2, "step {index} of {heads:?} in {format:?}: {off}");
                }
            }
        }
    }

    #[test]
    #[ignore = "needs a build with CUDA, and an NVIDIA device"]
    fn log_probabilities_and_draws_are_those_of_the_logits() {
        let (gpu, vocabulary) = (device(), 5003);
        let logits = tensor(3, vocabulary, 1, &gpu);
        let tokens = vec![vec![7, 9], vec![], vec![3, 3, 5002]];
        let slopes = vec![vec![0.5, -1.0], vec![], vec![2.0, 0.25, -0.125]];
        let run = |logits: &Tensor| {
            let found = composed::log_probabilities(logits, &tokens).unwrap();
            let back = logits.copy().unwrap();
            composed::log_probabilities_backward(&back, &tokens, &slopes).unwrap();
            (found, back)
        };
        let (found, back) = run(&logits);
        let (drawn, logprobs) = draw(&logits, vec![0.0, 0.3, 0.999], vec![0.0, 1.0, 0.7]).unwrap();
        let _forced = force();
        let (expected, expected_back) = run(&logits);
        for (a, b) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
        assert!(distance(&back, &expected_back) < 1e-4);
        let rows = logits.to_vec2::<f32>().unwrap();
        for (row, (token, logprob)) in rows.iter().zip(drawn.iter().zip(&logprobs)) {
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            let total = row.iter().map(|logit| f64::from(logit - most).exp()).sum::<f64>().ln() as f32;
            assert!((row[*token as usize] - most - total - logprob).abs() < 1e-4);
        }
        let most = rows[0].iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(rows[0].iter().position(|logit| *logit == most), Some(drawn[0] as usize));
        // The token where the running sum of probabilities passes the number.
        for (row, of, temperature) in [(1, 0.3, 1.0), (2, 0.999, 0.7)] {
            let share = |logit: &f32| f64::from((logit - 2.0) / temperature).exp();
            let all: f64 = rows[row].iter().map(share).sum();
            let before: f64 = rows[row][..drawn[row] as usize].iter().map(share).sum::<f64>() / all;
            let after = before + share(&rows[row][drawn[row] as usize]) / all;
            assert!(before - 1e-5 < of && of < after + 1e-5, "{before} {of} {after}");
        }
    }

    #[test]
    #[ignore = "needs a build with CUDA, and an NVIDIA device"]
    fn rotations_match_those_of_the_cpu() {
        let gpu = device();
        let rope = crate::model::rope::Rope::new(1e4, (24, 32), &crate::model::Scaling::Default, 50);
        let positions: Vec<u32> = (0..40).rev().collect();
        let run = |device: &Device| {
            let x = tensor(40, 3 * 32, 1, device);
            let rope = rope.replica();
            rope.rotate(&x, &Positions::new(&positions), ops::Direction::Forward).unwrap();
            x
        };
        assert!(distance(&run(&gpu), &run(&Device::Cpu)) < 1e-5);
    }
}
