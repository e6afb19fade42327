//! Weights that are loaded once and shared by many decoders.

use std::{path::Path, sync::Arc};

use candle_core::Device;

use super::Decoder;
use crate::model::{ModelError, kernels::Format};

/// A model whose weight matrices are frozen, on one device.
///
/// It is immutable. Users get a [`Decoder`] that shares the matrices and has its own norms, biases and
/// adapters. To train such a decoder in full, it first copies the matrices.
#[derive(Debug)]
pub struct Base {
    decoder: Decoder,
    users: Arc<()>,
}

impl Base {
    /// Loads a Hugging Face folder, each weight straight to this device; see [`Decoder::load_on`].
    pub fn load(folder: &Path, format: Format, device: &Device) -> Result<Self, ModelError> {
        Ok(Self::of(Decoder::load_on(folder, Some(format), device)?))
    }

    fn of(decoder: Decoder) -> Self {
        Self { decoder, users: Arc::default() }
    }

    /// The same weights on another device.
    pub fn replica(&self, device: &Device) -> Result<Self, ModelError> {
        Ok(Self::of(self.decoder.replica(device)?))
    }

    /// A decoder with these weights and no adapter.
    pub fn decoder(&self) -> Result<Decoder, ModelError> {
        let decoder = self.decoder.replica(self.device())?;
        Ok(Decoder { base_user: Some(self.users.clone()), ..decoder })
    }

    /// The replica, on this base's device, of a decoder that shares the same model's weights, including its
    /// adapter.
    pub fn replica_of(&self, decoder: &Decoder) -> Result<Decoder, ModelError> {
        let mut replica = self.decoder()?;
        for (from, to) in decoder.layers.iter().zip(&mut replica.layers) {
            for (from, to) in from.linears.iter().zip(&mut to.linears) {
                to.lora = from.lora.as_ref().map(|lora| lora.replica(self.device())).transpose()?;
            }
        }
        Ok(replica)
    }

    pub fn device(&self) -> &Device {
        self.decoder.device()
    }

    /// Bytes of the weight matrices.
    pub fn bytes(&self) -> usize {
        self.decoder.bytes()
    }

    /// Whether decoders share its weights.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.users) > 1
    }
}
