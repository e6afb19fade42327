use super::*;
use crate::model::{
    Gradients, Vector,
    kernels::{Format, Heads},
    ops::{DeltaInputs, KvFormat, TreeLayout, composed::force, read},
    tree::TokenTree,
};

const SMALL: DeltaHeads = DeltaHeads { key: 2, value: 4, key_dim: 5, value_dim: 3, window: 4 };
const WIDE: DeltaHeads = DeltaHeads { key: 1, value: 2, key_dim: 128, value_dim: 128, window: 4 };

fn waves(shape: impl Into<candle_core::Shape>, seed: usize, scale: f32, offset: f32) -> Tensor {
    let shape = shape.into();
    let wave = |at: usize| ((at * at % 7919 + 31 * at + 977 * seed) as f32 * 0.37).sin() * scale + offset;
    Tensor::from_vec((0..shape.elem_count()).map(wave).collect::<Vec<_>>(), shape, &Device::Cpu).unwrap()
}

/// A layer's parameters and rows.
struct Layer {
    heads: DeltaHeads,
    mixed: Tensor,
    b: Tensor,
    a: Tensor,
    conv: Vector,
    a_log: Vector,
    dt_bias: Vector,
}

impl Layer {
    fn new(heads: DeltaHeads, rows: usize) -> Self {
        let vector = |tensor, slot| Vector { tensor, slot: Some(slot) };
        Self {
            heads,
            mixed: waves((rows, heads.channels()), 1, 2.0, 0.0),
            b: waves((rows, heads.value), 2, 2.0, 0.0),
            a: waves((rows, heads.value), 3, 2.0, 0.0),
            conv: vector(waves((heads.channels(), 1, heads.window), 4, 0.8, 0.0), 0),
            // Gates from almost none to fast.
            a_log: vector(waves(heads.value, 5, 2.0, -2.0), 1),
            dt_bias: vector(waves(heads.value, 6, 1.0, 0.0), 2),
        }
    }

    fn inputs(&self) -> DeltaInputs<'_> {
        let Self { heads, mixed, b, a, conv, a_log, dt_bias } = self;
        DeltaInputs { heads: *heads, mixed, b, a, conv, a_log, dt_bias }
    }

    /// The output over a tree, the gradients of the rows, and those of the parameters.
    fn over(&self, tree: &TokenTree) -> Vec<Vec<f32>> {
        let heads = Heads { query: 1, kv: 1, dim: 1 };
        let layout = TreeLayout::new(tree, KvFormat { heads, format: Format::F32, by_kernels: true });
        let out = layout.delta(&self.inputs()).unwrap();
        let slots = [&self.conv, &self.a_log, &self.dt_bias].map(|of| of.tensor.zeros_like().unwrap());
        let gradients = Gradients { slots: slots.into() };
        let dout = waves(out.shape().clone(), 7, 1.0, 0.0);
        let drows = layout.delta_backward(&self.inputs(), &dout, &gradients).unwrap();
        [out].iter().chain(&drows).chain(&gradients.slots).map(|tensor| read(tensor).unwrap()).collect()
    }
}

fn assert_near(what: &str, ours: &[f32], theirs: &[f32], worst: f32) {
    assert_eq!(ours.len(), theirs.len());
    let size = theirs.iter().fold(1e-6f32, |most, value| most.max(value.abs()));
    let found = ours.iter().zip(theirs).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(found / size < worst, "{what}: {}", found / size);
}

/// Sequences that branch after 2, 63, 64, 65 and 100 tokens, and other roots of 1, 3 and 70.
fn branching() -> TokenTree {
    let stem: Vec<u32> = (0..140).collect();
    let branch = |shared: usize, own: u32| {
        let own = (0..own).map(|token| 1000 + shared as u32 + token);
        stem[..shared].iter().copied().chain(own).collect()
    };
    let mut sequences: Vec<Vec<u32>> = [(140, 0), (100, 40), (100, 1), (65, 3), (64, 70), (63, 2), (2, 62)]
        .map(|(a, b)| branch(a, b))
        .into();
    sequences.extend([1, 3, 70].map(|length| (5000 + length..5000 + 2 * length).collect()));
    TokenTree::new(&sequences)
}

#[test]
fn outputs_and_gradients_are_those_of_the_kernels() {
    let alone =
        [1, 2, 3, 63, 64, 65, 100, 200].map(|length: u32| TokenTree::new(&[(0..length).collect::<Vec<_>>()]));
    for heads in [SMALL, WIDE] {
        for tree in alone.iter().chain([&branching()]) {
            let layer = Layer::new(heads, tree.tokens.len());
            let kernels = layer.over(tree);
            let _forced = force();
            let names = ["out", "mixed", "b", "a", "conv", "a_log", "dt_bias"];
            for (name, (ours, theirs)) in names.iter().zip(layer.over(tree).iter().zip(&kernels)) {
                let what = format!("{name} of {} rows", tree.tokens.len());
                assert_near(&what, ours, theirs, 1e-4);
            }
        }
    }
}

/// A run for each of these lengths, each with its start.
fn runs(of: &[(usize, DeltaStart)]) -> Vec<DeltaRun> {
    let mut end = 0;
    let run = |(length, start): &(usize, DeltaStart)| {
        end += length;
        DeltaRun { rows: end - length..end, start: *start, is_continued: true }
    };
    of.iter().map(run).collect()
}

fn rows_of(layer: &Layer) -> DeltaRows {
    let inputs = layer.inputs();
    inputs.after(layer.mixed.clone()).unwrap()
}

#[test]
fn runs_computed_in_small_batches_equal_those_computed_at_once() {
    use DeltaStart::{Nothing, Run};
    let of =
        [(70, Nothing), (1, Run(0)), (130, Run(0)), (90, Run(0)), (3, Run(2)), (1, Run(1)), (66, Nothing)];
    let runs = runs(&of);
    for heads in [SMALL, WIDE] {
        let layer = Layer::new(heads, runs.iter().map(|run| run.rows.len()).sum());
        let rows = rows_of(&layer);
        let dout = waves((layer.mixed.dim(0).unwrap(), heads.width()), 7, 1.0, 0.0);
        let found = |most: usize| {
            let plan = DeltaPlan::with_most(heads, &runs, |_, _| most, &Device::Cpu).unwrap();
            let (out, ends) = plan.forward(&rows, &[]).unwrap();
            let d = plan.backward(&rows, &dout).unwrap();
            let tensors = [out, d.convolved, d.a, d.b, d.a_log, d.dt_bias];
            tensors
                .into_iter()
                .chain(ends.into_iter().flatten())
                .map(|tensor| read(&tensor).unwrap())
                .collect()
        };
        let (one, all): (Vec<Vec<f32>>, Vec<Vec<f32>>) = (found(1), found(100));
        assert_eq!(one.len(), 6 + runs.len());
        for (one, all) in one.iter().zip(&all) {
            assert_near("a batch of one", one, all, 1e-5);
        }
    }
}

#[test]
fn a_sequence_that_continues_given_states_equals_the_whole_wherever_it_is_cut() {
    let length = 150;
    for heads in [SMALL, WIDE] {
        let layer = Layer::new(heads, length);
        let rows = rows_of(&layer);
        let whole = runs(&[(length, DeltaStart::Nothing)]);
        let (whole, end) = DeltaPlan::new(heads, &whole, &Device::Cpu).unwrap().forward(&rows, &[]).unwrap();
        for cut in [1, 2, 3, 63, 64, 65, 100, 149] {
            let first = runs(&[(cut, DeltaStart::Nothing), (length - cut, DeltaStart::Nothing)]);
            let plan = DeltaPlan::new(heads, &first, &Device::Cpu).unwrap();
            let (out, states) = plan.forward(&rows, &[]).unwrap();
            let second = runs(&[(cut, DeltaStart::Nothing), (length - cut, DeltaStart::Given(0))]);
            let plan = DeltaPlan::new(heads, &second, &Device::Cpu).unwrap();
            let (again, ends) = plan.forward(&rows, &[states[0].clone().unwrap()]).unwrap();
            let before = |out: &Tensor| read(&out.narrow(0, 0, cut).unwrap()).unwrap();
            assert_near("before the cut", &before(&out), &before(&whole), 1e-5);
            assert_near("all rows", &read(&again).unwrap(), &read(&whole).unwrap(), 1e-5);
            let state = |ends: &[Option<Tensor>]| read(ends.last().unwrap().as_ref().unwrap()).unwrap();
            assert_near("state", &state(&ends), &state(&end), 1e-5);
        }
    }
}

#[test]
fn equal_keys_and_fast_gates_stay_finite_and_equal_the_kernels() {
    // A row repeated without decay, and gates that underflow.
    for (a_log, repeated) in [(-30.0, true), (5.0, false)] {
        let tree = TokenTree::new(&[(0..130).collect::<Vec<u32>>()]);
        let mut layer = Layer::new(WIDE, 130);
        if repeated {
            layer.mixed = layer.mixed.narrow(0, 3, 1).unwrap().broadcast_as(layer.mixed.shape()).unwrap();
            layer.mixed = layer.mixed.contiguous().unwrap();
            layer.b = (layer.b.zeros_like().unwrap() + 8.0).unwrap();
        }
        layer.a_log.tensor = (layer.a_log.tensor.zeros_like().unwrap() + a_log).unwrap();
        let kernels = layer.over(&tree);
        let _forced = force();
        for (ours, theirs) in layer.over(&tree).iter().zip(&kernels).take(4) {
            assert!(ours.iter().all(|value| value.is_finite()));
            assert_near("a row", ours, theirs, 1e-3);
        }
    }
}

#[test]
fn a_run_that_precedes_the_one_it_continues_is_refused() {
    let runs = runs(&[(1, DeltaStart::Run(1)), (1, DeltaStart::Nothing)]);
    let refused = DeltaPlan::new(SMALL, &runs, &Device::Cpu).err().unwrap().to_string();
    assert!(refused.contains("run 0 precedes"), "{refused}");
}
