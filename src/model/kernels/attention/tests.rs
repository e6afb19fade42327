use super::{super::gemm::tests::numbers, *};
use crate::model::kernels::{Format, multiplies_bf16};

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
        let mut kv = KeyValues::new(HEADS);
        let flat = own.start * narrow..own.end * narrow;
        kv.extend(&k[flat.clone()], &v[flat]);
        kv
    };
    let kv: Vec<KeyValues> = TREE.iter().map(own).collect();
    let mut out = vec![0.0; 96 * wide];
    attend(&q, &positions, &spans(&kv), HEADS, &mut out);
    let (mut dq, mut dk, mut dv) = (vec![0.0; 96 * wide], vec![0.0; 96 * narrow], vec![0.0; 96 * narrow]);
    let starts = [0, 45, 76];
    let into = (&mut dq[..], &mut dk[..], &mut dv[..]);
    attend_backward((&q, &k, &v), &positions, &spans(&kv), &starts, HEADS, format, &out, &dout, into);
    [dq, dk, dv]
}

#[test]
fn gradients_in_bf16_differ_from_those_in_f32_by_its_rounding() {
    let (whole, rounded) = (gradients(Format::F32), gradients(Format::Bf16));
    for (whole, rounded) in whole.iter().zip(&rounded) {
        let norm =
            |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v * v)).sum::<f64>().sqrt();
        let difference = norm(&mut whole.iter().zip(rounded).map(|(a, b)| a - b));
        let relative = difference / norm(&mut whole.iter().copied());
        assert!(relative < 6e-3, "relative error {relative}");
        assert_eq!(relative == 0.0, !multiplies_bf16());
    }
}

#[test]
fn a_segment_grown_token_by_token_holds_what_one_grown_at_once_holds() {
    let (k, v) = (numbers(200 * 64, 1), numbers(200 * 64, 2));
    let (mut once, mut grown) = (KeyValues::new(HEADS), KeyValues::new(HEADS));
    once.extend(&k, &v);
    for (k, v) in k.chunks(64).zip(v.chunks(64)) {
        grown.extend(k, v);
    }
    assert_eq!((once.len, &once.heads), (grown.len, &grown.heads));
    assert!(grown.bytes() <= 4 * 2 * (200 + PANEL) * 64, "{} bytes", grown.bytes());
}
