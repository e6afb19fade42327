use std::collections::HashMap;

use serde_json::Value;

use super::{super::gemm::tests::numbers, *};
use crate::model::kernels::{Format, PANEL, multiplies_bf16};

const HEADS: Heads = Heads { query: 4, kv: 2, dim: 32 };

/// A prefix of 45 tokens with two branches, of 31 and of 20: rows that attend, first position, own rows.
const TREE: [(Range<usize>, usize, Range<usize>); 3] =
    [(0..96, 0, 0..45), (45..76, 45, 45..76), (76..96, 45, 76..96)];

fn positions() -> Vec<u32> {
    (0..76).chain(45..65).collect()
}

fn spans(kv: &[KeyValues]) -> Vec<Span<'_>> {
    let span = |((rows, first, _), kv): (&(Range<usize>, usize, _), _)| Span {
        rows: rows.clone(),
        first: *first,
        kv,
    };
    TREE.iter().zip(kv).map(span).collect()
}

/// Gradients of q, k and v.
fn gradients(format: Format) -> [Vec<f32>; 3] {
    let (wide, narrow) = (HEADS.query * HEADS.dim, HEADS.kv * HEADS.dim);
    let (q, k, v) = (numbers(96 * wide, 1), numbers(96 * narrow, 2), numbers(96 * narrow, 3));
    let (dout, positions) = (numbers(96 * wide, 4), positions());
    let own = |(_, _, own): &(_, _, Range<usize>)| {
        let mut kv = KeyValues::new(HEADS, format);
        let flat = own.start * narrow..own.end * narrow;
        kv.extend(&k[flat.clone()], &v[flat], 0);
        kv
    };
    let kv: Vec<KeyValues> = TREE.iter().map(own).collect();
    let mut out = vec![0.0; 96 * wide];
    attend(&q, &positions, &spans(&kv), HEADS.into(), &mut out);
    let (mut dq, mut dk, mut dv) = (vec![0.0; 96 * wide], vec![0.0; 96 * narrow], vec![0.0; 96 * narrow]);
    let starts = [0, 45, 76];
    let into = (&mut dq[..], &mut dk[..], &mut dv[..]);
    attend_backward((&q, &k, &v), &positions, &spans(&kv), &starts, HEADS.into(), &out, &dout, into);
    [dq, dk, dv]
}

#[test]
fn gradients_in_bf16_differ_from_those_in_f32_by_its_rounding() {
    let (whole, rounded) = (gradients(Format::F32), gradients(Format::Bf16));
    for (whole, rounded) in whole.iter().zip(&rounded) {
        let relative = error(rounded, whole);
        assert!(relative > 0.0 && relative < 6e-3, "relative error {relative}");
    }
}

/// The norm of the difference, relative to the norm of the expected values.
fn error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v * v)).sum::<f64>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

#[test]
fn attention_in_bf16_and_its_gradients_are_those_of_autograd_through_rounded_keys_and_values() {
    let text = include_str!("../../../../../../tests/reference/fixtures/attention_bf16.json");
    let fixture: HashMap<String, Value> = serde_json::from_str(text).unwrap();
    let of = |name: &str| serde_json::from_value::<Vec<f32>>(fixture[name].clone()).unwrap();
    let count = |name: &str| fixture["heads"][name].as_u64().unwrap() as usize;
    let heads = Heads { query: count("query"), kv: count("kv"), dim: count("dim") };
    let rows = fixture["rows"].as_u64().unwrap() as usize;
    let (q, k, v, dout) = (of("q"), of("k"), of("v"), of("dout"));
    let mut kv = KeyValues::new(heads, Format::Bf16);
    kv.extend(&k, &v, 0);
    let positions: Vec<u32> = (0..rows as u32).collect();
    let spans = [Span { rows: 0..rows, first: 0, kv: &kv }];
    let mut out = vec![0.0; q.len()];
    attend(&q, &positions, &spans, heads.into(), &mut out);
    // Probabilities halfway between two bf16 numbers may be rounded the other way.
    assert!(error(&out, &of("out")) < 3e-4, "{}", error(&out, &of("out")));
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    let into = (&mut dq[..], &mut dk[..], &mut dv[..]);
    attend_backward((&q, &k, &v), &positions, &spans, &[0], heads.into(), &out, &dout, into);
    // Autograd subtracts the mean of the scores' gradients by unrounded probabilities. The kernels use the rounded
    // ones that made `out`. If the machine multiplies pairs, probabilities, scores' gradients and `dout` are
    // rounded too.
    let bound = if multiplies_bf16() { 6e-3 } else { 2e-3 };
    for (name, found) in [("dq", dq), ("dk", dk), ("dv", dv)] {
        let error = error(&found, &of(name));
        assert!(error < bound, "{name}: {error}");
    }
}

/// Attention of the last rows of a path of 77 tokens. The tokens before them are split into segments.
fn cut(format: Format, window: Option<usize>, cuts: &[usize], rows: Range<usize>) -> Vec<f32> {
    const PATH: usize = 77;
    let (wide, narrow) = (HEADS.query * HEADS.dim, HEADS.kv * HEADS.dim);
    let (q, k, v) = (numbers(PATH * wide, 1), numbers(PATH * narrow, 2), numbers(PATH * narrow, 3));
    let ends = cuts.iter().copied().chain([PATH]);
    let segments: Vec<(usize, KeyValues)> = std::iter::once(0)
        .chain(cuts.iter().copied())
        .zip(ends)
        .map(|(start, end)| {
            let mut kv = KeyValues::new(HEADS, format);
            kv.extend(&k[start * narrow..end * narrow], &v[start * narrow..end * narrow], 0);
            (start, kv)
        })
        .collect();
    let below = |(first, _): &(usize, KeyValues)| first.saturating_sub(rows.start)..rows.len();
    let spans: Vec<Span<'_>> = segments
        .iter()
        .map(|segment| Span { rows: below(segment), first: segment.0, kv: &segment.1 })
        .collect();
    let positions: Vec<u32> = rows.clone().map(|row| row as u32).collect();
    let mut out = vec![0.0; rows.len() * wide];
    attend(
        &q[rows.start * wide..rows.end * wide],
        &positions,
        &spans,
        Attention { window, ..HEADS.into() },
        &mut out,
    );
    out
}

#[test]
fn a_path_cut_anywhere_and_a_row_alone_give_the_same_bits() {
    let wide = HEADS.query * HEADS.dim;
    let windows = [None, Some(1), Some(2), Some(9), Some(32), Some(33), Some(45), Some(76)];
    for (format, window) in [Format::F32, Format::Bf16].iter().flat_map(|f| windows.map(|w| (*f, w))) {
        let whole = cut(format, window, &[], 0..77);
        let everywhere: Vec<usize> = (1..77).collect();
        for cuts in [&[1][..], &[2], &[31], &[32], &[33, 34], &[7, 40, 41, 44], &[68, 69], &everywhere] {
            let what = format!("{format:?}, window {window:?}, cut at {cuts:?}");
            assert_eq!(cut(format, window, cuts, 0..77), whole, "{what}");
            for row in [0, 1, 8, 9, 33, 40, 43, 76] {
                assert_eq!(
                    cut(format, window, cuts, row..row + 1),
                    whole[row * wide..][..wide],
                    "{what}, row {row}"
                );
            }
        }
    }
}

#[test]
fn rows_see_the_keys_of_their_window_only() {
    let wide = HEADS.query * HEADS.dim;
    for format in [Format::F32, Format::Bf16] {
        let whole = cut(format, None, &[], 0..77);
        let windowed = cut(format, Some(20), &[40], 0..77);
        assert_eq!(windowed[..20 * wide], whole[..20 * wide], "the first rows see all keys");
        assert!(windowed[20 * wide..] != whole[20 * wide..]);
        // A window of one key: the row's own value.
        let own = cut(Format::F32, Some(1), &[], 0..77);
        let values = numbers(77 * HEADS.kv * HEADS.dim, 3);
        for (row, own) in own.chunks(wide).enumerate() {
            for (head, own) in own.chunks(HEADS.dim).enumerate() {
                let at = (row * HEADS.kv + head / 2) * HEADS.dim;
                assert_eq!(own, &values[at..at + HEADS.dim], "row {row}, head {head}");
            }
        }
    }
}

#[test]
fn a_segment_grown_token_by_token_equals_one_grown_at_once() {
    let (k, v) = (numbers(200 * 64, 1), numbers(200 * 64, 2));
    for (format, bytes) in [(Format::F32, 4), (Format::Bf16, 2)] {
        let (mut once, mut grown) = (KeyValues::new(HEADS, format), KeyValues::new(HEADS, format));
        once.extend(&k, &v, 0);
        for (k, v) in k.chunks(64).zip(v.chunks(64)) {
            grown.extend(k, v, 150);
        }
        assert_eq!((once.len, &once.data), (grown.len, &grown.data));
        assert_eq!(grown.bytes(), KeyValues::bytes_for(HEADS, format, 200));
        assert!(grown.bytes() <= bytes * 2 * (200 + PANEL) * 64, "{} bytes", grown.bytes());
    }
}

#[test]
fn the_parts_of_split_keys_and_values_are_those_of_their_tokens() {
    let width = HEADS.kv * HEADS.dim;
    let (k, v) = (numbers(100 * width, 1), numbers(100 * width, 2));
    for format in [Format::F32, Format::Bf16] {
        let of = |range: Range<usize>| {
            let mut kv = KeyValues::new(HEADS, format);
            let flat = range.start * width..range.end * width;
            kv.extend(&k[flat.clone()], &v[flat], 0);
            kv
        };
        for at in [1, 2, 31, 32, 33, 64, 77, 99] {
            let mut upper = of(0..100);
            let mut lower = upper.split(at, 0);
            assert_eq!((upper.len, &upper.data), (at, &of(0..at).data), "{format:?} at {at}");
            assert_eq!((lower.len, &lower.data), (100 - at, &of(at..100).data), "{format:?} at {at}");
            assert_eq!(upper.bytes(), KeyValues::bytes_for(HEADS, format, at));
            // Both grow again.
            lower.extend(&k[..3 * width], &v[..3 * width], 0);
            upper.extend(&k[at * width..], &v[at * width..], 0);
            assert_eq!(upper.data, of(0..100).data);
        }
    }
}
