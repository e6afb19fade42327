//! Copies of weights for other devices, including other CPU devices.

#[cfg(test)]
use std::sync::Arc;
use std::sync::OnceLock;

use candle_core::{Device, Result, Tensor};

use super::{Linear, Lora, Matrix, Vector, Weight, device_mismatch};

/// A separate copy of the tensor on this device, even if it is already there.
fn copy_to(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    match tensor.device().same_device(device) {
        true => tensor.copy(),
        false => tensor.to_device(device),
    }
}

impl Matrix {
    /// The same weight on a device: a copy, except that a frozen weight that is already there is shared.
    pub fn replica(&self, device: &Device) -> Result<Self> {
        let weight = match &self.weight {
            Weight::Plain(tensor, _) => Weight::Plain(copy_to(tensor, device)?, OnceLock::new()),
            Weight::OnDevice(tensor) => Weight::OnDevice(tensor.to_device(device)?),
            Weight::Codes(codes) => Weight::Codes(codes.to_device(device)?),
            Weight::Frozen(frozen) if device.is_cpu() => Weight::Frozen(frozen.clone()),
            Weight::Frozen(_) => return Err(device_mismatch()),
        };
        Ok(Self { weight, slot: self.slot })
    }

    /// Whether both are frozen and share memory.
    #[cfg(test)]
    pub fn shares_memory_with(&self, other: &Self) -> bool {
        matches!((&self.weight, &other.weight), (Weight::Frozen(a), Weight::Frozen(b)) if Arc::ptr_eq(a, b))
    }
}

impl Vector {
    pub fn replica(&self, device: &Device) -> Result<Self> {
        Ok(Self { tensor: copy_to(&self.tensor, device)?, slot: self.slot })
    }
}

impl Lora {
    pub fn replica(&self, device: &Device) -> Result<Self> {
        let (a, b) = (self.a.replica(device)?, self.b.replica(device)?);
        Ok(Self { a, b, scale: self.scale, dropout: self.dropout })
    }
}

impl Linear {
    pub fn replica(&self, device: &Device) -> Result<Self> {
        Ok(Self {
            weight: self.weight.replica(device)?,
            bias: self.bias.as_ref().map(|bias| bias.replica(device)).transpose()?,
            lora: self.lora.as_ref().map(|lora| lora.replica(device)).transpose()?,
        })
    }
}
