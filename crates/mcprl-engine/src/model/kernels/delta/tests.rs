use super::{super::gemm::tests::numbers, *};

/// A layer's parameters and rows in these values' type.
#[derive(Clone)]
struct Layer<T> {
    mixed: Vec<T>,
    b: Vec<T>,
    a: Vec<T>,
    conv: Vec<T>,
    a_log: Vec<T>,
    dt_bias: Vec<T>,
}

impl Layer<f32> {
    fn random(heads: DeltaHeads, rows: usize) -> Self {
        let scaled = |count: usize, seed: u32, scale: f32| -> Vec<f32> {
            numbers(count, seed).into_iter().map(|value| value * scale).collect()
        };
        Self {
            mixed: scaled(rows * heads.channels(), 1, 2.0),
            b: scaled(rows * heads.value, 2, 2.0),
            a: scaled(rows * heads.value, 3, 2.0),
            conv: scaled(heads.channels() * heads.window, 4, 0.8),
            // Gates from almost none to fast.
            a_log: numbers(heads.value, 5).into_iter().map(|value| 2.0 * value - 2.0).collect(),
            dt_bias: scaled(heads.value, 6, 1.0),
        }
    }

    fn rows(&self) -> DeltaRows<'_> {
        DeltaRows { mixed: &self.mixed, b: &self.b, a: &self.a }
    }

    fn weights(&self) -> DeltaWeights<'_> {
        DeltaWeights { conv: &self.conv, a_log: &self.a_log, dt_bias: &self.dt_bias }
    }

    fn exact(&self) -> Layer<f64> {
        let exact = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect();
        Layer {
            mixed: exact(&self.mixed),
            b: exact(&self.b),
            a: exact(&self.a),
            conv: exact(&self.conv),
            a_log: exact(&self.a_log),
            dt_bias: exact(&self.dt_bias),
        }
    }

    /// The rows with these indices.
    fn picked(&self, heads: DeltaHeads, rows: &[usize]) -> Self {
        let pick = |from: &[f32], width: usize| -> Vec<f32> {
            rows.iter().flat_map(|row| from[row * width..(row + 1) * width].to_vec()).collect()
        };
        let mixed = pick(&self.mixed, heads.channels());
        Self { mixed, b: pick(&self.b, heads.value), a: pick(&self.a, heads.value), ..self.clone() }
    }

    fn tree(&self, heads: DeltaHeads, segments: &[DeltaSegment]) -> Vec<f32> {
        let mut out = vec![0.0; self.b.len() * heads.value_dim];
        delta_tree(heads, self.weights(), self.rows(), segments, &mut out);
        out
    }
}

impl Layer<f64> {
    /// The recurrent form, a token after the other. `before` is the row before each row.
    fn outputs(&self, heads: DeltaHeads, before: &[Option<usize>]) -> Vec<f64> {
        let DeltaHeads { key, value, key_dim, value_dim, window } = heads;
        let channels = heads.channels();
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let mut states: Vec<Vec<f64>> = Vec::new();
        let mut out = Vec::new();
        for row in 0..before.len() {
            let mut active = vec![0.0; channels];
            for (channel, active) in active.iter_mut().enumerate() {
                let mut from = Some(row);
                for lag in (0..window).rev() {
                    let Some(source) = from else { break };
                    *active += self.conv[channel * window + lag] * self.mixed[source * channels + channel];
                    from = before[source];
                }
                *active = silu(*active);
            }
            let normed = |start: usize| -> Vec<f64> {
                let x = &active[start..start + key_dim];
                let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x / norm).collect()
            };
            let zeros = vec![0.0; value * key_dim * value_dim];
            let mut state = before[row].map_or(zeros, |before| states[before].clone());
            for head in 0..value {
                let of_key = head / (value / key);
                let query = normed(of_key * key_dim);
                let own_key = normed(key * key_dim + of_key * key_dim);
                let from = 2 * key * key_dim + head * value_dim;
                let (b, a) = (self.b[row * value + head], self.a[row * value + head]);
                let beta = 1.0 / (1.0 + (-b).exp());
                let gate = -self.a_log[head].exp() * (a + self.dt_bias[head]).exp().ln_1p();
                let state = &mut state[head * key_dim * value_dim..(head + 1) * key_dim * value_dim];
                state.iter_mut().for_each(|value| *value *= gate.exp());
                for column in 0..value_dim {
                    let read = |state: &[f64], by: &[f64]| -> f64 {
                        by.iter().enumerate().map(|(i, x)| x * state[i * value_dim + column]).sum()
                    };
                    let error = active[from + column] - read(state, &own_key);
                    for (i, key) in own_key.iter().enumerate() {
                        state[i * value_dim + column] += key * beta * error;
                    }
                    out.push(read(state, &query) / (key_dim as f64).sqrt());
                }
            }
            states.push(state);
        }
        out
    }
}

const SMALL: DeltaHeads = DeltaHeads { key: 2, value: 4, key_dim: 5, value_dim: 3, window: 4 };
const WIDE: DeltaHeads = DeltaHeads { key: 1, value: 2, key_dim: 128, value_dim: 128, window: 4 };

/// Segments by length, each with its parent.
fn segments(of: &[(usize, Option<usize>)]) -> Vec<DeltaSegment> {
    let mut segments: Vec<DeltaSegment> = Vec::new();
    let mut start = 0;
    for (length, parent) in of {
        let first = parent.map_or(0, |parent: usize| segments[parent].first + segments[parent].rows.len());
        segments.push(DeltaSegment { rows: start..start + length, first, parent: *parent });
        start += length;
    }
    segments
}

/// Branches at 2, 63, 64, 65 and 100, and a second root.
fn tree() -> Vec<DeltaSegment> {
    segments(&[
        (2, None),
        (61, Some(0)),
        (1, Some(1)),
        (1, Some(2)),
        (35, Some(3)),
        (70, Some(4)),
        (3, Some(4)),
        (40, Some(3)),
        (2, Some(2)),
        (75, Some(1)),
        (5, Some(0)),
        (9, None),
    ])
}

fn rows_of(segments: &[DeltaSegment]) -> usize {
    segments.last().map_or(0, |segment| segment.rows.end)
}

fn before(segments: &[DeltaSegment]) -> Vec<Option<usize>> {
    let of = |segment: &DeltaSegment| {
        let parent = segment.parent.map(|parent| segments[parent].rows.end - 1);
        let first = segment.rows.start;
        segment.rows.clone().map(move |row| if row == first { parent } else { Some(row - 1) })
    };
    segments.iter().flat_map(of).collect()
}

/// The rows from the root to the end of a segment.
fn path(segments: &[DeltaSegment], segment: usize) -> Vec<usize> {
    let mut rows = segments[segment].parent.map_or(Vec::new(), |parent| path(segments, parent));
    rows.extend(segments[segment].rows.clone());
    rows
}

fn assert_near(ours: &[f32], exact: &[f64], worst: f64) {
    assert_eq!(ours.len(), exact.len());
    let size = exact.iter().fold(1e-9f64, |most, value| most.max(value.abs()));
    let found = ours.iter().zip(exact).fold(0.0f64, |most, (a, b)| most.max((f64::from(*a) - b).abs()));
    assert!(found / size < worst, "{}", found / size);
}

#[test]
fn outputs_are_those_of_the_recurrence() {
    for heads in [SMALL, WIDE] {
        let segments = tree();
        let layer = Layer::random(heads, rows_of(&segments));
        let exact = layer.exact().outputs(heads, &before(&segments));
        assert_near(&layer.tree(heads, &segments), &exact, 1e-5);
    }
}

#[test]
fn a_row_has_the_same_bits_in_a_tree_and_alone() {
    for heads in [SMALL, WIDE] {
        let segments = tree();
        let layer = Layer::random(heads, rows_of(&segments));
        let (shared, width) = (layer.tree(heads, &segments), heads.value * heads.value_dim);
        for segment in 0..segments.len() {
            let rows = path(&segments, segment);
            let one = [DeltaSegment { rows: 0..rows.len(), first: 0, parent: None }];
            let alone = layer.picked(heads, &rows).tree(heads, &one);
            for (row, alone) in rows.iter().zip(alone.chunks_exact(width)) {
                assert_eq!(&shared[row * width..(row + 1) * width], alone, "row {row}");
            }
        }
    }
}

/// Outputs of a sequence in steps of these lengths. `children` cuts also start a new segment.
fn stepped(heads: DeltaHeads, layer: &Layer<f32>, lengths: &[usize], children: bool) -> Vec<f32> {
    let mut out = vec![0.0; layer.b.len() * heads.value_dim];
    let (mut state, mut start) = (DeltaState::new(heads), 0);
    for length in lengths {
        if children {
            state = state.child();
        }
        let steps = &mut [DeltaStep { rows: start..start + length, parent: None, state: &mut state }];
        delta_steps(heads, layer.weights(), layer.rows(), steps, &mut out);
        start += length;
    }
    out
}

#[test]
fn a_sequence_has_the_same_bits_wherever_it_is_cut() {
    for (heads, step) in [(SMALL, 1), (WIDE, 13)] {
        let rows = 200;
        let layer = Layer::random(heads, rows);
        let one = [DeltaSegment { rows: 0..rows, first: 0, parent: None }];
        let whole = layer.tree(heads, &one);
        for cut in (1..rows).step_by(step) {
            let cuts = segments(&[(cut, None), (rows - cut, Some(0))]);
            assert_eq!(layer.tree(heads, &cuts), whole, "cut at {cut}");
            for children in [true, false] {
                assert_eq!(stepped(heads, &layer, &[cut, rows - cut], children), whole, "step at {cut}");
            }
        }
        assert_eq!(stepped(heads, &layer, &vec![1; rows], false), whole, "token by token");
    }
}

#[test]
fn a_step_with_a_parent_and_its_children_equals_the_tree() {
    let heads = SMALL;
    let segments = tree();
    let layer = Layer::random(heads, rows_of(&segments));
    let whole = layer.tree(heads, &segments);
    let mut states = vec![DeltaState::new(heads); segments.len()];
    let mut out = vec![0.0; whole.len()];
    let mut steps: Vec<DeltaStep<'_>> = segments
        .iter()
        .zip(&mut states)
        .map(|(segment, state)| DeltaStep { rows: segment.rows.clone(), parent: segment.parent, state })
        .collect();
    delta_steps(heads, layer.weights(), layer.rows(), &mut steps, &mut out);
    assert_eq!(out, whole);
    let lengths: Vec<usize> = segments.iter().map(|segment| segment.rows.len()).collect();
    assert_eq!(states.iter().map(DeltaState::tokens).collect::<Vec<_>>(), lengths);
}

fn gradients(
    heads: DeltaHeads,
    layer: &Layer<f32>,
    segments: &[DeltaSegment],
    dout: &[f32],
) -> DeltaGradients {
    delta_tree_backward(heads, layer.weights(), layer.rows(), segments, dout)
}

/// Loss at a small distance on both sides of a value.
fn slope(
    heads: DeltaHeads,
    layer: &Layer<f64>,
    before: &[Option<usize>],
    dout: &[f32],
    value: impl Fn(&mut Layer<f64>) -> &mut f64,
) -> f64 {
    const STEP: f64 = 1e-5;
    let loss = |step: f64| -> f64 {
        let mut layer = layer.clone();
        *value(&mut layer) += step;
        layer.outputs(heads, before).iter().zip(dout).map(|(out, d)| out * f64::from(*d)).sum()
    };
    (loss(STEP) - loss(-STEP)) / (2.0 * STEP)
}

#[test]
fn gradients_over_a_tree_are_the_slopes_of_the_recurrence() {
    let heads = SMALL;
    let segments = tree();
    let before = before(&segments);
    let layer = Layer::random(heads, rows_of(&segments));
    let dout = numbers(layer.b.len() * heads.value_dim, 9);
    let ours = gradients(heads, &layer, &segments, &dout);
    let exact = layer.exact();
    let check = |ours: &[f32], of: fn(&mut Layer<f64>) -> &mut Vec<f64>| {
        let step = (ours.len() / 60).max(1);
        let picked: Vec<usize> = (0..ours.len()).step_by(step).collect();
        let slopes: Vec<f64> = picked
            .iter()
            .map(|index| slope(heads, &exact, &before, &dout, |layer| &mut of(layer)[*index]))
            .collect();
        let ours: Vec<f32> = picked.iter().map(|index| ours[*index]).collect();
        assert_near(&ours, &slopes, 2e-5);
    };
    check(&ours.mixed, |layer| &mut layer.mixed);
    check(&ours.b, |layer| &mut layer.b);
    check(&ours.a, |layer| &mut layer.a);
    check(&ours.conv, |layer| &mut layer.conv);
    check(&ours.a_log, |layer| &mut layer.a_log);
    check(&ours.dt_bias, |layer| &mut layer.dt_bias);
}

#[test]
fn gradients_over_a_tree_are_the_sums_over_its_sequences() {
    for heads in [SMALL, WIDE] {
        let segments = tree();
        let layer = Layer::random(heads, rows_of(&segments));
        let width = heads.value * heads.value_dim;
        let mut dout = numbers(rows_of(&segments) * width, 9);
        let mut sum: Vec<f64> = vec![0.0; layer.mixed.len()];
        let leaves: Vec<usize> = (0..segments.len())
            .filter(|index| segments.iter().all(|segment| segment.parent != Some(*index)))
            .collect();
        for leaf in &leaves {
            let rows = path(&segments, *leaf);
            let one = [DeltaSegment { rows: 0..rows.len(), first: 0, parent: None }];
            let own: Vec<f32> =
                rows.iter().flat_map(|row| dout[row * width..(row + 1) * width].to_vec()).collect();
            let alone = gradients(heads, &layer.picked(heads, &rows), &one, &own);
            for (row, d) in rows.iter().zip(alone.mixed.chunks_exact(heads.channels())) {
                let into = &mut sum[row * heads.channels()..(row + 1) * heads.channels()];
                into.iter_mut().zip(d).for_each(|(sum, d)| *sum += f64::from(*d));
            }
        }
        // A shared row's output counts once for each sequence.
        let mut uses = vec![0.0; rows_of(&segments)];
        leaves.iter().for_each(|leaf| path(&segments, *leaf).iter().for_each(|row| uses[*row] += 1.0));
        for (row, dout) in dout.chunks_exact_mut(width).enumerate() {
            dout.iter_mut().for_each(|d| *d *= uses[row]);
        }
        assert_near(&gradients(heads, &layer, &segments, &dout).mixed, &sum, 1e-5);
    }
}

#[test]
fn threads_change_no_bit() {
    let heads = DeltaHeads { key: 3, value: 6, key_dim: 32, value_dim: 32, window: 4 };
    let segments = tree();
    let layer = Layer::random(heads, rows_of(&segments));
    let dout = numbers(layer.b.len() * heads.value_dim, 9);
    let one = (layer.tree(heads, &segments), gradients(heads, &layer, &segments, &dout));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    let many = pool.install(|| (layer.tree(heads, &segments), gradients(heads, &layer, &segments, &dout)));
    assert!(one == many);
    let lengths = [7, 60, 1, 200, rows_of(&segments) - 268];
    let alone = stepped(heads, &layer, &lengths, true);
    assert_eq!(pool.install(|| stepped(heads, &layer, &lengths, true)), alone);
}

#[test]
fn a_fast_gate_underflows_to_nothing() {
    let heads = SMALL;
    let mut layer = Layer::random(heads, 150);
    layer.a_log.fill(5.0);
    let one = [DeltaSegment { rows: 0..150, first: 0, parent: None }];
    let out = layer.tree(heads, &one);
    assert_near(&out, &layer.exact().outputs(heads, &before(&one)), 1e-5);
    let gradients = gradients(heads, &layer, &one, &out);
    assert!(gradients.mixed.iter().chain(&gradients.a).all(|d| d.is_finite()));
}
