//! The decoder: pre-norm transformer layers with rotary grouped-query attention and a gated feed-forward.
//!
//! One decoder serves all families. The differences of a family (biases, head norms, fused matrices, experts)
//! are switches of its [`ModelConfig`]. Sampling and training use the same [`Decoder::layer`]. The caller
//! supplies the positions, and a [`ops::Mixer`] of rows with those before them: cached segments in sampling, other rows of a
//! token tree in training.

mod attention;
mod backward;
mod base;
mod convolution;
mod delta;
mod experts;
mod layer;
mod load;
mod placement;
mod projection;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use candle_core::{Device, Tensor};

pub use base::Base;
pub use layer::Saved;
pub use placement::Placement;

use super::{
    LayerKind, Linear, Matrix, ModelConfig, ModelError, Vector,
    kernels::{DeltaHeads, Format},
    ops::{self, Gradients, KvFormat},
    rope::Rope,
};

#[derive(Debug)]
pub struct Layer {
    pub input_norm: Vector,
    pub mixing: Mixing,
    pub middle_norm: Vector,
    /// Norms of what attention and the feed-forward add, if the family has them.
    pub output_norms: Option<[Vector; 2]>,
    /// In the order of [`ModelConfig::linears`].
    pub linears: Vec<Linear>,
}

/// What mixes the rows of a layer, with its parameters that are not linear layers.
#[derive(Debug)]
pub enum Mixing {
    /// Norms of each query and each key head, if the family has them.
    Attention(Option<[Vector; 2]>),
    Delta(Box<DeltaParameters>),
    /// `[channels, 1, window]`
    Convolution(Vector),
}

/// The parameters of linear attention other than its linear layers.
#[derive(Debug)]
pub struct DeltaParameters {
    pub heads: DeltaHeads,
    /// `[value heads]`
    pub a_log: Vector,
    /// `[value heads]`
    pub dt_bias: Vector,
    /// `[channels, 1, window]`
    pub conv: Vector,
    /// `[value dim]`, of each head's result.
    pub norm: Vector,
}

impl DeltaParameters {
    /// In the order of [`ModelConfig::tensors`].
    fn vectors(&self) -> [&Vector; 4] {
        [&self.a_log, &self.dt_bias, &self.conv, &self.norm]
    }

    fn vectors_mut(&mut self) -> [&mut Vector; 4] {
        [&mut self.a_log, &mut self.dt_bias, &mut self.conv, &mut self.norm]
    }

    fn replica(&self, device: &Device) -> candle_core::Result<Self> {
        Ok(Self {
            heads: self.heads,
            a_log: self.a_log.replica(device)?,
            dt_bias: self.dt_bias.replica(device)?,
            conv: self.conv.replica(device)?,
            norm: self.norm.replica(device)?,
        })
    }
}

impl Mixing {
    /// In the order of [`ModelConfig::tensors`].
    fn vectors_mut(&mut self) -> Vec<&mut Vector> {
        match self {
            Self::Attention(norms) => norms.iter_mut().flatten().collect(),
            Self::Delta(parameters) => parameters.vectors_mut().into(),
            Self::Convolution(weight) => vec![weight],
        }
    }

    fn replica(&self, device: &Device) -> candle_core::Result<Self> {
        Ok(match self {
            Self::Attention(norms) => Self::Attention(replicas(norms, device)?),
            Self::Delta(parameters) => Self::Delta(Box::new(parameters.replica(device)?)),
            Self::Convolution(weight) => Self::Convolution(weight.replica(device)?),
        })
    }
}

fn replicas(norms: &Option<[Vector; 2]>, device: &Device) -> candle_core::Result<Option<[Vector; 2]>> {
    let both = |[first, second]: &[Vector; 2]| Ok([first.replica(device)?, second.replica(device)?]);
    norms.as_ref().map(both).transpose()
}

#[derive(Debug)]
pub struct Decoder {
    pub config: ModelConfig,
    pub embedding: Matrix,
    pub layers: Vec<Layer>,
    pub norm: Vector,
    /// None if the embedding is also the output projection.
    pub head: Option<Matrix>,
    /// Per device.
    ropes: Vec<Ropes>,
    placement: Placement,
    /// If it shares the weights of a [`Base`]: the base's reference count.
    base_user: Option<Arc<()>>,
}

/// The rotary embeddings of the layers on a device.
#[derive(Debug, Clone)]
struct Ropes {
    rope: Rope,
    /// That of layers with sliding attention, if it is another.
    sliding: Option<Rope>,
}

impl Ropes {
    /// The same for other devices.
    fn replicas(&self, devices: usize) -> Vec<Self> {
        let replica =
            || Self { rope: self.rope.replica(), sliding: self.sliding.as_ref().map(Rope::replica) };
        (0..devices).map(|_| replica()).collect()
    }
}

/// Initialisation of a new decoder: normal weights of this deviation, drawn from this seed.
#[derive(Debug, Clone, Copy)]
pub struct Init {
    pub seed: u64,
    pub deviation: f32,
}

/// The linear layers of a layer by their role.
struct Parts<'a> {
    /// For queries, keys and values: one layer or three. For linear attention: its four inputs.
    project: &'a [Linear],
    output: &'a Linear,
    /// Gate and up (or both in one) and down; or a router and those of every expert.
    feed: &'a [Linear],
}

impl Layer {
    fn parts(&self, config: &ModelConfig) -> Parts<'_> {
        let projections = match self.mixing {
            Mixing::Attention(_) => config.projections(),
            Mixing::Delta(_) => 4,
            Mixing::Convolution(_) => 1,
        };
        let (project, rest) = self.linears.split_at(projections);
        Parts { project, output: &rest[0], feed: &rest[1..] }
    }
}

impl Decoder {
    /// Every weight under its name in the files, in parameter order, without adapters.
    pub fn tensors(&self) -> Result<Vec<(String, Tensor)>, ModelError> {
        let offset = f64::from(self.config.design.norm_offset());
        let norm =
            |norm: &Vector| if offset == 0.0 { Ok(norm.tensor.clone()) } else { &norm.tensor - offset };
        let each = |norms: &Option<[Vector; 2]>| -> candle_core::Result<Vec<Tensor>> {
            norms.iter().flatten().map(norm).collect()
        };
        let mut tensors = vec![self.embedding.tensor()?];
        for layer in &self.layers {
            tensors.push(norm(&layer.input_norm)?);
            match &layer.mixing {
                Mixing::Attention(norms) => tensors.extend(each(norms)?),
                Mixing::Delta(of) => tensors.extend(of.vectors().map(|vector| vector.tensor.clone())),
                Mixing::Convolution(weight) => tensors.push(weight.tensor.clone()),
            }
            tensors.push(norm(&layer.middle_norm)?);
            tensors.extend(each(&layer.output_norms)?);
            for linear in &layer.linears {
                tensors.push(linear.weight.tensor()?);
                tensors.extend(linear.bias.as_ref().map(|bias| bias.tensor.clone()));
            }
        }
        tensors.push(norm(&self.norm)?);
        if let Some(head) = &self.head {
            tensors.push(head.tensor()?);
        }
        Ok(self.config.tensors().map(|(name, _)| name).zip(tensors).collect())
    }

    /// Parameters in the order of [`Self::tensors`], to number or replace them.
    fn slots(&mut self) -> Vec<Parameter<'_>> {
        let mut slots = vec![Parameter::Vocabulary(&mut self.embedding)];
        for layer in &mut self.layers {
            slots.push(Parameter::Vector(&mut layer.input_norm));
            slots.extend(layer.mixing.vectors_mut().into_iter().map(Parameter::Vector));
            slots.push(Parameter::Vector(&mut layer.middle_norm));
            slots.extend(layer.output_norms.iter_mut().flatten().map(Parameter::Vector));
            for linear in &mut layer.linears {
                slots.push(Parameter::Matrix(&mut linear.weight));
                slots.extend(linear.bias.as_mut().map(Parameter::Vector));
            }
        }
        slots.push(Parameter::Vector(&mut self.norm));
        slots.extend(self.head.as_mut().map(Parameter::Vocabulary));
        slots
    }

    /// The rotary embedding of a layer.
    fn rope(&self, layer: usize) -> &Rope {
        let ropes = &self.ropes[self.placement.index(layer)];
        match (self.config.layer(layer), &ropes.sliding) {
            (LayerKind::SlidingAttention, Some(rope)) => rope,
            _ => &ropes.rope,
        }
    }

    /// The device of its tensors, or the first of several: that of the embedding, the last norm and the logits.
    pub fn device(&self) -> &Device {
        self.placement.first()
    }

    /// Where its layers are.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Whether the CPU kernels compute it. Otherwise its operations are composed of candle's.
    pub fn by_kernels(&self) -> bool {
        ops::by_kernels(&self.norm.tensor)
    }

    /// The format of a layer's keys and values.
    pub fn kv_format(&self, layer: usize) -> KvFormat {
        let layer = &self.layers[layer];
        let format = layer.linears.first().map_or(Format::F32, |linear| linear.weight.format());
        let by_kernels = ops::by_kernels(&layer.input_norm.tensor);
        KvFormat { heads: self.config.heads, format, by_kernels }
    }

    /// The same decoder at a place, which may be its own, with separate parameters. Frozen weights that are already
    /// there are shared.
    pub fn replica(&self, placement: &Placement) -> Result<Self, ModelError> {
        let layer = |(index, layer): (usize, &Layer)| -> candle_core::Result<Layer> {
            let device = placement.device(index);
            Ok(Layer {
                input_norm: layer.input_norm.replica(device)?,
                mixing: layer.mixing.replica(device)?,
                middle_norm: layer.middle_norm.replica(device)?,
                output_norms: replicas(&layer.output_norms, device)?,
                linears: layer
                    .linears
                    .iter()
                    .map(|linear| linear.replica(device))
                    .collect::<Result<_, _>>()?,
            })
        };
        let device = placement.first();
        let is_here = self.placement.devices().len() == placement.devices().len()
            && self.placement.devices().iter().zip(placement.devices()).all(|(a, b)| a.same_device(b));
        Ok(Self {
            config: self.config.clone(),
            embedding: self.embedding.replica(device)?,
            layers: self.layers.iter().enumerate().map(layer).collect::<Result<_, _>>()?,
            norm: self.norm.replica(device)?,
            head: self.head.as_ref().map(|head| head.replica(device)).transpose()?,
            ropes: match is_here {
                true => self.ropes.clone(),
                false => self.ropes[0].replicas(placement.devices().len()),
            },
            placement: placement.clone(),
            base_user: self.base_user.clone(),
        })
    }

    /// Freezes every weight matrix in this format. If it is narrower than 16 bits, the embedding, the output
    /// projection and the experts' router are stored in bf16.
    #[cfg(test)]
    pub fn freeze(&mut self, format: Format) -> Result<(), ModelError> {
        let ends = format.at_the_ends();
        for matrix in std::iter::once(&mut self.embedding).chain(&mut self.head) {
            *matrix = Matrix::frozen_output(&matrix.tensor()?, ends)?;
        }
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let shapes = self.config.linears(self.config.layer(index));
            for (shape, linear) in shapes.iter().zip(&mut layer.linears) {
                let format = if shape.role.is_stored_wider() { ends } else { format };
                linear.weight = Matrix::frozen(&linear.weight.tensor()?, format)?;
            }
        }
        Ok(())
    }

    /// Bytes of the weight matrices in memory, without adapters.
    pub fn bytes(&self) -> usize {
        let linears = self.layers.iter().flat_map(|layer| &layer.linears).map(|linear| linear.weight.bytes());
        let head = self.head.as_ref().map_or(0, Matrix::bytes);
        self.embedding.bytes() + head + linears.sum::<usize>()
    }

    /// The adapter's matrices in order: per layer and linear, A then B.
    fn adapter_slots(&mut self) -> Vec<Parameter<'_>> {
        let linears = self.layers.iter_mut().flat_map(|layer| layer.linears.iter_mut());
        let loras = linears.filter_map(|linear| linear.lora.as_mut());
        loras.flat_map(|lora| [Parameter::Matrix(&mut lora.a), Parameter::Matrix(&mut lora.b)]).collect()
    }

    /// The trained parameters: the adapter's if there is one, else all.
    ///
    /// # Errors
    /// Fails if a frozen weight cannot be copied to be trained.
    pub fn trained(&mut self) -> Result<Vec<Parameter<'_>>, ModelError> {
        let adapted = self.layers.iter().flat_map(|layer| &layer.linears).any(|linear| linear.lora.is_some());
        let mut parameters = if adapted { self.adapter_slots() } else { self.slots() };
        for (slot, parameter) in parameters.iter_mut().enumerate() {
            match parameter {
                Parameter::Matrix(matrix) | Parameter::Vocabulary(matrix) => {
                    matrix.thaw()?;
                    matrix.slot = Some(slot);
                }
                Parameter::Vector(vector) => vector.slot = Some(slot),
            }
        }
        Ok(parameters)
    }

    /// `[tokens, hidden]`. Fails on a token outside the vocabulary or a position beyond the context.
    pub fn embed(&self, tokens: &[u32], positions: &[u32]) -> Result<Tensor, ModelError> {
        let vocabulary = self.config.vocabulary;
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(ModelError::Token { token: *token, vocabulary });
        }
        if let Some(position) = positions.iter().find(|position| **position as usize >= self.config.context) {
            return Err(ModelError::Context { position: *position as usize, context: self.config.context });
        }
        let rows = self.embedding.rows(tokens)?;
        Ok(match self.config.embedding_scale() {
            Some(scale) => (rows * scale)?,
            None => rows,
        })
    }

    /// Adds the gradient of [`Self::embed`]'s rows to that of the embedding.
    pub fn embed_backward(
        &self,
        tokens: &[u32],
        dx: &Tensor,
        gradients: &Gradients,
    ) -> Result<(), ModelError> {
        let slot = self.embedding.slot;
        match self.config.embedding_scale().filter(|_| slot.is_some()) {
            Some(scale) => ops::embed_backward(tokens, &(dx * scale)?, slot, gradients)?,
            None => ops::embed_backward(tokens, dx, slot, gradients)?,
        }
        Ok(())
    }

    fn output(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Final norm and output projection of rows (`[rows, hidden]`). Returns the normed rows and the logits
    /// (`[rows, vocabulary]`), which no format rounds.
    pub fn logits(&self, x: &Tensor) -> Result<(Tensor, Tensor), ModelError> {
        let normed = ops::rms_norm(x, &self.norm.tensor, self.config.norm_epsilon)?;
        let logits = self.output().forward(&normed)?;
        Ok((normed, logits))
    }

    /// The gradient of the input rows of [`Self::logits`].
    pub fn logits_backward(
        &self,
        x: &Tensor,
        normed: &Tensor,
        dlogits: &Tensor,
        gradients: &Gradients,
    ) -> Result<Tensor, ModelError> {
        let dnormed = self.output().forward_backward(normed, dlogits, gradients)?;
        let dx = x.zeros_like()?;
        let norm = (&self.norm.tensor, self.norm.slot);
        ops::rms_norm_backward(x, norm, self.config.norm_epsilon, &dnormed, &dx, gradients)?;
        Ok(dx)
    }
}

/// A trained parameter.
pub enum Parameter<'a> {
    /// Of a linear layer of a decoder layer, or of its adapter.
    Matrix(&'a mut Matrix),
    /// The embedding or the output projection: a row for each token.
    Vocabulary(&'a mut Matrix),
    Vector(&'a mut Vector),
}

impl Parameter<'_> {
    /// The weight decay of this parameter, if matrices have this one. Only matrices have one: not norms, biases,
    /// convolutions and the decays of linear attention.
    pub fn decay(&self, of_matrices: f32) -> f32 {
        if matches!(self, Self::Vector(_)) { 0.0 } else { of_matrices }
    }

    pub fn tensor(&self) -> &Tensor {
        match self {
            Self::Matrix(matrix) | Self::Vocabulary(matrix) => {
                matrix.plain().expect("`Decoder::trained` fails if it cannot thaw a matrix")
            }
            Self::Vector(vector) => &vector.tensor,
        }
    }

    /// Bytes of its packed copy for products.
    pub fn packed_bytes(&self) -> usize {
        match self {
            Self::Matrix(matrix) | Self::Vocabulary(matrix) => matrix.packed_bytes(),
            Self::Vector(_) => 0,
        }
    }

    pub fn set(&mut self, tensor: Tensor) {
        match self {
            Self::Matrix(matrix) | Self::Vocabulary(matrix) => matrix.set(tensor),
            Self::Vector(vector) => vector.tensor = tensor,
        }
    }
}
