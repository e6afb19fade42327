//! Several linear layers of one input: queries, keys and values, or gate and up.

use candle_core::{Result, Tensor};

use crate::model::{Gradients, Linear, ops};

/// Projects `x` to tensors of these widths, by one linear layer each or by one layer with concatenated
/// outputs.
pub(super) fn project<const N: usize>(
    linears: &[Linear],
    x: &Tensor,
    widths: [usize; N],
    low: &mut Vec<Option<Tensor>>,
) -> Result<[Tensor; N]> {
    let mut outputs = Vec::with_capacity(N);
    // The layers' weights have one type.
    let rounded = match linears {
        [first, _, ..] => first.rounded(x)?,
        _ => None,
    };
    for linear in linears {
        let (output, kept) = match &rounded {
            Some(rounded) => linear.forward_rounded(x, rounded)?,
            None => linear.forward(x, None)?,
        };
        outputs.push(output);
        low.push(kept);
    }
    match outputs.try_into() {
        Ok(outputs) => Ok(outputs),
        Err(fused) => Ok(ops::split(&fused[0], &widths)?.try_into().expect("one part per width")),
    }
}

/// The backward of [`project`]: adds the gradient of `x` to `dx`. `low` is from the forward.
pub(super) fn project_backward(
    linears: &[Linear],
    x: &Tensor,
    low: &[Option<Tensor>],
    outputs: &[&Tensor],
    dx: &Tensor,
    gradients: &Gradients,
) -> Result<()> {
    if linears.len() == outputs.len() {
        for ((linear, low), dy) in linears.iter().zip(low).zip(outputs) {
            linear.backward(x, low.as_ref(), dy, dx, gradients)?;
        }
        return Ok(());
    }
    linears[0].backward(x, low[0].as_ref(), &Tensor::cat(outputs, 1)?, dx, gradients)
}
