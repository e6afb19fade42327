//! Weights that are loaded once and shared by many decoders.

use std::{path::Path, sync::Arc};

use candle_core::Device;

use super::Decoder;
use crate::model::{ModelError, kernels::Format};

/// A model whose weight matrices are frozen, on one device or spread over several.
///
/// It is immutable. Users get a [`Decoder`] that shares the matrices and has its own norms, biases and
/// adapters. To train such a decoder in full, it first copies the matrices.
#[derive(Debug)]
pub struct Base {
    decoder: Decoder,
    users: Arc<()>,
}

impl Base {
    /// Loads a Hugging Face folder, each weight straight to its device; see [`Decoder::load_across`].
    pub fn load(folder: &Path, format: Format, devices: Vec<Device>) -> Result<Self, ModelError> {
        Ok(Self::of(Decoder::load_across(folder, Some(format), devices)?))
    }

    fn of(decoder: Decoder) -> Self {
        Self { decoder, users: Arc::default() }
    }

    /// The same weights on another device.
    pub fn replica(&self, device: &Device) -> Result<Self, ModelError> {
        Ok(Self::of(self.decoder.replica(&device.clone().into())?))
    }

    /// A decoder with these weights and no adapter.
    pub fn decoder(&self) -> Result<Decoder, ModelError> {
        let decoder = self.decoder.replica(self.decoder.placement())?;
        Ok(Decoder { base_user: Some(self.users.clone()), ..decoder })
    }

    /// The replica, at this base's place, of a decoder that shares the same model's weights, including its
    /// adapter.
    pub fn replica_of(&self, decoder: &Decoder) -> Result<Decoder, ModelError> {
        let mut replica = self.decoder()?;
        for (index, (from, to)) in decoder.layers.iter().zip(&mut replica.layers).enumerate() {
            let device = self.decoder.placement().device(index);
            for (from, to) in from.linears.iter().zip(&mut to.linears) {
                to.lora = from.lora.as_ref().map(|lora| lora.replica(device)).transpose()?;
            }
        }
        Ok(replica)
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
