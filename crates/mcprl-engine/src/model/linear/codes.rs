//! 4-bit weights on a device without our CPU kernels. Each product decodes the weight to bf16, with the values that the CPU's
//! products have.

use candle_core::{Device, Result, Tensor};

use super::row_values;
use crate::model::{
    kernels::{NF4_BLOCK, encode_nf4, nf4_pairs},
    ops::composed,
};

/// A weight `[out, in]` in [`Format::Nf4`](crate::model::kernels::Format::Nf4). Rows are filled up to whole blocks with zeros.
#[derive(Debug)]
pub struct Codes {
    /// `u8`, `[out, blocks · 32]`: two codes to a byte, the first in the lower half.
    codes: Tensor,
    /// `[out, blocks]`
    scales: Tensor,
    /// The two values of each byte, `[256, 2]`.
    pairs: Tensor,
    inputs: usize,
}

impl Codes {
    pub fn new(tensor: &Tensor) -> Result<Self> {
        let (outputs, inputs) = tensor.dims2()?;
        let blocks = inputs.div_ceil(NF4_BLOCK);
        let (mut codes, mut scales) =
            (vec![0; outputs * blocks * NF4_BLOCK / 2], vec![0.0; outputs * blocks]);
        let rows = codes.chunks_exact_mut(blocks * NF4_BLOCK / 2).zip(scales.chunks_exact_mut(blocks));
        let on_host = tensor.to_device(&Device::Cpu)?;
        for (row, (codes, scales)) in rows.enumerate() {
            let mut values = row_values(&on_host, row)?;
            values.resize(blocks * NF4_BLOCK, 0.0);
            encode_nf4(&values, codes.iter_mut(), scales.iter_mut());
        }
        let device = tensor.device();
        Ok(Self {
            codes: Tensor::from_vec(codes, (outputs, blocks * NF4_BLOCK / 2), device)?,
            scales: Tensor::from_vec(scales, (outputs, blocks), device)?,
            pairs: Tensor::from_vec(nf4_pairs(), (256, 2), device)?,
            inputs,
        })
    }

    /// The weight in bf16.
    pub fn decode(&self) -> Result<Tensor> {
        let (outputs, blocks) = self.scales.dims2()?;
        let weight = composed::decode_nf4(&self.codes, &self.scales, &self.pairs)?;
        weight.reshape((outputs, blocks * NF4_BLOCK))?.narrow(1, 0, self.inputs)?.contiguous()
    }

    pub fn to_device(&self, device: &Device) -> Result<Self> {
        Ok(Self {
            codes: self.codes.to_device(device)?,
            scales: self.scales.to_device(device)?,
            pairs: self.pairs.to_device(device)?,
            inputs: self.inputs,
        })
    }

    pub fn outputs(&self) -> usize {
        self.scales.dims()[0]
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn bytes(&self) -> usize {
        self.codes.elem_count() + self.scales.elem_count() * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::model::kernels::{Format, Frozen};

    #[test]
    fn a_decoded_weight_has_the_values_of_the_kernels_products() {
        for (outputs, inputs) in [(3, 128), (2, 48), (2, 201)] {
            let values: Vec<f32> =
                (0..outputs * inputs).map(|i| ((i * i) as f32 * 0.37).sin() * 0.1).collect();
            let frozen = Frozen::new(Format::Nf4, outputs, inputs, |row, out| {
                out.copy_from_slice(&values[row * inputs..][..inputs]);
            });
            let codes =
                Codes::new(&Tensor::from_vec(values.clone(), (outputs, inputs), &Device::Cpu).unwrap())
                    .unwrap();
            let decoded = codes.decode().unwrap().to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap();
            let mut row = vec![0.0; inputs];
            for (index, decoded) in decoded.iter().enumerate() {
                frozen.row(index, &mut row);
                assert_eq!(*decoded, row, "row {index} of {outputs} x {inputs}");
            }
            assert_eq!((codes.outputs(), codes.inputs()), (outputs, inputs));
        }
    }
}
