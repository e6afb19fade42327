//! The content of `config.json`, reduced to the sizes and switches of the decoder.

mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    family::Family,
    kernels::{Attention, DeltaHeads, DeltaState, Heads},
    ops::{Activation, ComposedState, ConvolutionShape},
    rope::Scaling,
};
pub use read::MOST_LAYERS;

/// Sizes and constants of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub vocabulary: usize,
    pub hidden: usize,
    /// Width of the feed-forward, or of one expert.
    pub intermediate: usize,
    pub layers: usize,
    pub heads: Heads,
    /// Longest sequence, in tokens.
    pub context: usize,
    pub rope_theta: f64,
    pub norm_epsilon: f32,
    /// The output projection is the embedding (tied).
    pub tied: bool,
    pub design: Design,
}

/// The differences between a family's decoder and the plainest one.
#[derive(Debug, Clone, PartialEq)]
pub struct Design {
    pub family: Family,
    /// Queries and keys are normalised per head.
    pub head_norms: bool,
    /// Query, key and value are one matrix, and so are gate and up (fused).
    pub fused: bool,
    /// Biases of query, key and value; of the attention's output; of the feed-forward.
    pub biases: Biases,
    /// Number of leading values of each head that are rotated; all if none.
    pub rotary: Option<usize>,
    pub scaling: Scaling,
    pub experts: Option<Experts>,
    /// By layer. Empty if each is the usual one, with full attention.
    pub layers: Vec<LayerKind>,
    /// Of layers with sliding attention.
    pub sliding: Option<Sliding>,
    /// Of layers with linear attention.
    pub delta: Option<DeltaHeads>,
    /// Of layers with a convolution: the rows that it spans.
    pub convolution: Option<usize>,
    /// Each head's queries are projected with a gate, whose sigmoid multiplies the head's result.
    pub gated: bool,
    /// Of the feed-forward's gate.
    pub activation: Activation,
    /// The results of attention and feed-forward are normalised before they are added.
    pub output_norms: bool,
    /// Norms multiply by 1 more than their weights in the files.
    pub norms_add_one: bool,
    /// Embedded rows are multiplied by the root of their width.
    pub scaled_embedding: bool,
    /// Scores are divided by the root of this instead of the head's width.
    pub query_scalar: Option<usize>,
    /// The decoder is the language model of a larger model, which has further parts. Adapters use the larger model's names.
    pub is_part: bool,
}

/// What the files call the parts of a layer that families name differently.
pub struct Names {
    pub input_norm: &'static str,
    pub middle_norm: &'static str,
    /// Of queries and keys.
    pub head_norms: [&'static str; 2],
    attention_output: &'static str,
    feed_forward: &'static str,
    /// Gate, up and down.
    feed: [&'static str; 3],
    /// The norm after the last layer.
    pub last_norm: &'static str,
}

const USUAL_NAMES: Names = Names {
    input_norm: "input_layernorm",
    middle_norm: "post_attention_layernorm",
    head_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    attention_output: "o_proj",
    feed_forward: "mlp",
    feed: ["gate_proj", "up_proj", "down_proj"],
    last_norm: "model.norm",
};
const GEMMA_NAMES: Names = Names { middle_norm: "pre_feedforward_layernorm", ..USUAL_NAMES };
const LFM2_NAMES: Names = Names {
    input_norm: "operator_norm",
    middle_norm: "ffn_norm",
    head_norms: ["self_attn.q_layernorm", "self_attn.k_layernorm"],
    attention_output: "out_proj",
    feed_forward: "feed_forward",
    feed: ["w1", "w3", "w2"],
    last_norm: "model.embedding_norm",
};

/// Norms of the results of attention and feed-forward.
pub const OUTPUT_NORMS: [&str; 2] = ["post_attention_layernorm", "post_feedforward_layernorm"];

/// What mixes the rows of a layer: an entry of `layer_types` in `config.json`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerKind {
    /// Attention to all keys up to the row's own.
    #[default]
    FullAttention,
    /// Attention to the last keys up to the row's own: [`Design::sliding`].
    SlidingAttention,
    /// Gated DeltaNet: [`Design::delta`].
    LinearAttention,
    /// A gated convolution: [`Design::convolution`].
    Conv,
}

impl LayerKind {
    /// The kind whose weights it has.
    pub fn by_weights(self) -> Self {
        if self == Self::SlidingAttention { Self::FullAttention } else { self }
    }
}

/// A layer that mixes rows by a state of constant size, and its sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recurrence {
    Delta(DeltaHeads),
    Convolution(ConvolutionShape),
}

/// Sliding attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sliding {
    /// The number of keys that a row sees, its own the last of them.
    pub window: usize,
    /// Base of the rotary embedding, which is not scaled. None if it is that of the other layers.
    pub rope_theta: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Biases {
    pub input: bool,
    pub output: bool,
    pub feed_forward: bool,
}

/// The name of [`Activation::Gelu`].
const GEMMA_ACTIVATION: &str = "gelu_pytorch_tanh";
/// Far more than any model has.
const MOST_EXPERTS: usize = 1 << 16;
/// Far larger than any size of linear attention.
const MOST_DELTA: usize = 1 << 14;

/// A mixture of experts: each token uses a few of several feed-forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    pub count: usize,
    pub per_token: usize,
    /// The weights of a token's experts are normalised to sum to one.
    pub normalised: bool,
}

impl Default for Design {
    fn default() -> Self {
        Self::of(Family::Qwen3)
    }
}

impl Design {
    /// The family's own default.
    pub fn of(family: Family) -> Self {
        let of_gemma = family == Family::Gemma3;
        Self {
            family,
            head_norms: !matches!(family, Family::Llama | Family::Mistral | Family::Phi3 | Family::Qwen2),
            fused: family == Family::Phi3,
            biases: Biases { input: family == Family::Qwen2, ..Biases::default() },
            rotary: None,
            scaling: Scaling::Default,
            experts: None,
            layers: Vec::new(),
            sliding: None,
            delta: None,
            convolution: None,
            gated: family == Family::Qwen3_5,
            activation: if of_gemma { Activation::Gelu } else { Activation::Silu },
            output_norms: of_gemma,
            norms_add_one: of_gemma || family == Family::Qwen3_5,
            scaled_embedding: of_gemma,
            query_scalar: None,
            is_part: false,
        }
    }

    /// What the decoder adds to the norms' weights when it loads them.
    pub fn norm_offset(&self) -> f32 {
        if self.norms_add_one { 1.0 } else { 0.0 }
    }

    pub fn names(&self) -> &'static Names {
        match self.family {
            Family::Gemma3 => &GEMMA_NAMES,
            Family::Lfm2 => &LFM2_NAMES,
            _ => &USUAL_NAMES,
        }
    }
}

/// The role of a linear layer in its decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Attention,
    /// The gates of linear attention: few outputs, which decide how much of a state remains.
    Gate,
    FeedForward,
    /// Chooses a token's experts.
    Router,
    Expert,
}

impl Role {
    /// Whether its weights are stored in 16 bits or more, whatever the format of the others.
    pub fn is_stored_wider(self) -> bool {
        matches!(self, Self::Router | Self::Gate)
    }
}

/// A linear layer of a decoder layer: its size, and its name in the files after `model.layers.N.`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearShape {
    pub name: String,
    pub role: Role,
    pub outputs: usize,
    pub inputs: usize,
    pub bias: bool,
}

impl Recurrence {
    /// The parameters that are not linear layers, in parameter order. Of linear attention: `A_log`, the bias of the gates,
    /// the convolution and the norm.
    pub fn tensors(self) -> Vec<(&'static str, Vec<usize>)> {
        match self {
            Self::Delta(delta) => vec![
                ("linear_attn.A_log", vec![delta.value]),
                ("linear_attn.dt_bias", vec![delta.value]),
                ("linear_attn.conv1d.weight", vec![delta.channels(), 1, delta.window]),
                ("linear_attn.norm.weight", vec![delta.value_dim]),
            ],
            Self::Convolution(ConvolutionShape { channels, window }) => {
                vec![("conv.conv.weight", vec![channels, 1, window])]
            }
        }
    }

    /// Bytes of the state of a segment, for the kernels of the CPU or on a device.
    pub fn bytes(self, by_kernels: bool) -> usize {
        match self {
            Self::Delta(heads) if by_kernels => DeltaState::bytes_for(heads),
            Self::Delta(heads) => ComposedState::bytes_for(heads),
            Self::Convolution(shape) => shape.state_bytes(),
        }
    }
}

impl ModelConfig {
    /// What mixes the rows of a layer.
    pub fn layer(&self, index: usize) -> LayerKind {
        self.design.layers.get(index).copied().unwrap_or_default()
    }

    /// The attention of a layer. A window that no sequence exceeds is none.
    pub fn attention(&self, layer: usize) -> Attention {
        let sliding = self.design.sliding.filter(|_| self.layer(layer) == LayerKind::SlidingAttention);
        let window = sliding.map(|sliding| sliding.window).filter(|window| *window < self.context);
        let scale = self.design.query_scalar.map(|scalar| 1.0 / (scalar as f32).sqrt());
        Attention { window, scale: scale.unwrap_or(self.heads.scale()), heads: self.heads }
    }

    /// The factor of embedded rows, as Transformers has it in float32. In bf16, Transformers rounds it.
    pub fn embedding_scale(&self) -> Option<f64> {
        self.design.scaled_embedding.then(|| f64::from((self.hidden as f32).sqrt()))
    }

    /// The recurrence of layers of this kind; none if they have attention.
    pub fn recurrence(&self, kind: LayerKind) -> Option<Recurrence> {
        match kind {
            LayerKind::FullAttention | LayerKind::SlidingAttention => None,
            LayerKind::LinearAttention => self.design.delta.map(Recurrence::Delta),
            LayerKind::Conv => self
                .design
                .convolution
                .map(|window| Recurrence::Convolution(ConvolutionShape { channels: self.hidden, window })),
        }
    }

    /// The kinds of layers, each with its number of layers. Attention with a window has the weights of full attention.
    pub fn kinds(&self) -> Vec<(LayerKind, usize)> {
        let of = |kind| (kind, self.design.layers.iter().filter(|of| **of == kind).count());
        let others = [of(LayerKind::LinearAttention), of(LayerKind::Conv)];
        let full = self.layers.saturating_sub(others.iter().map(|(_, layers)| layers).sum());
        let kinds = std::iter::once((LayerKind::FullAttention, full)).chain(others);
        kinds.filter(|(_, layers)| *layers > 0).collect()
    }

    /// [`Self::linears`] of every kind.
    pub fn linears_by_kind(&self) -> BTreeMap<LayerKind, Vec<LinearShape>> {
        self.kinds().into_iter().map(|(kind, _)| (kind, self.linears(kind))).collect()
    }

    /// The linear layers of a decoder layer of this kind, in parameter order: those for queries, keys and values; the
    /// attention's output; then the feed-forward, or the router and every expert's.
    pub fn linears(&self, kind: LayerKind) -> Vec<LinearShape> {
        let (hidden, wide, heads) = (self.hidden, self.intermediate, self.heads);
        let (query, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
        let Biases { input, output, feed_forward } = self.design.biases;
        let linear = |name: &str, role, outputs, inputs, bias| LinearShape {
            name: name.to_owned(),
            role,
            outputs,
            inputs,
            bias,
        };
        let queries = if self.design.gated { 2 * query } else { query };
        let Names { attention_output, feed_forward: feed_name, feed, .. } = self.design.names();
        let attention_output = format!("self_attn.{attention_output}");
        let mut linears = match (self.recurrence(kind), self.design.fused) {
            (Some(Recurrence::Delta(delta)), _) => {
                let of = |name: &str, role, outputs| {
                    linear(&format!("linear_attn.{name}"), role, outputs, hidden, false)
                };
                vec![
                    of("in_proj_qkv", Role::Attention, delta.channels()),
                    of("in_proj_z", Role::Attention, delta.width()),
                    of("in_proj_b", Role::Gate, delta.value),
                    of("in_proj_a", Role::Gate, delta.value),
                    linear("linear_attn.out_proj", Role::Attention, hidden, delta.width(), false),
                ]
            }
            (Some(Recurrence::Convolution(ConvolutionShape { channels, .. })), _) => vec![
                linear("conv.in_proj", Role::Attention, 3 * channels, hidden, false),
                linear("conv.out_proj", Role::Attention, hidden, channels, false),
            ],
            (None, true) => vec![
                linear("self_attn.qkv_proj", Role::Attention, queries + 2 * kv, hidden, input),
                linear(&attention_output, Role::Attention, hidden, query, output),
            ],
            (None, false) => vec![
                linear("self_attn.q_proj", Role::Attention, queries, hidden, input),
                linear("self_attn.k_proj", Role::Attention, kv, hidden, input),
                linear("self_attn.v_proj", Role::Attention, kv, hidden, input),
                linear(&attention_output, Role::Attention, hidden, query, output),
            ],
        };
        let gated = |prefix: &str, role| {
            let part = |name: &str, outputs, inputs| {
                linear(&format!("{prefix}.{name}"), role, outputs, inputs, feed_forward)
            };
            let mut parts = match self.design.fused {
                true => vec![part("gate_up_proj", 2 * wide, hidden)],
                false => vec![part(feed[0], wide, hidden), part(feed[1], wide, hidden)],
            };
            parts.push(part(feed[2], hidden, wide));
            parts
        };
        match self.design.experts {
            None => linears.extend(gated(feed_name, Role::FeedForward)),
            Some(experts) => {
                linears.push(linear("mlp.gate", Role::Router, experts.count, hidden, false));
                let of = |expert| gated(&format!("mlp.experts.{expert}"), Role::Expert);
                linears.extend((0..experts.count).flat_map(of));
            }
        }
        linears
    }

    /// The linear layers of every kind of decoder layer, each kind once.
    pub fn all_linears(&self) -> Vec<LinearShape> {
        self.linears_by_kind().into_values().flatten().collect()
    }

    /// Number of weights.
    pub fn weights(&self) -> usize {
        self.tensors().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    /// Name and shape of every weight, in parameter order. An iterator, because a configuration may declare
    /// more weights than fit in memory.
    pub fn tensors(&self) -> impl Iterator<Item = (String, Vec<usize>)> + '_ {
        let matrix = |name: &str| (name.to_owned(), vec![self.vocabulary, self.hidden]);
        let linears = self.linears_by_kind();
        let layers = (0..self.layers)
            .flat_map(move |index| self.layer_tensors(index, &linears[&self.layer(index).by_weights()]));
        std::iter::once(matrix("model.embed_tokens.weight"))
            .chain(layers)
            .chain([(format!("{}.weight", self.design.names().last_norm), vec![self.hidden])])
            .chain((!self.tied).then(|| matrix("lm_head.weight")))
    }

    fn layer_tensors(&self, index: usize, linears: &[LinearShape]) -> Vec<(String, Vec<usize>)> {
        let mut tensors = Vec::with_capacity(linears.len() + 8);
        let mut add = |name: &str, shape| tensors.push((format!("model.layers.{index}.{name}"), shape));
        let names = self.design.names();
        add(&format!("{}.weight", names.input_norm), vec![self.hidden]);
        match self.recurrence(self.layer(index)) {
            Some(recurrence) => recurrence.tensors().into_iter().for_each(|(name, shape)| add(name, shape)),
            None if self.design.head_norms => {
                names.head_norms.iter().for_each(|norm| add(&format!("{norm}.weight"), vec![self.heads.dim]));
            }
            None => {}
        }
        add(&format!("{}.weight", names.middle_norm), vec![self.hidden]);
        if self.design.output_norms {
            OUTPUT_NORMS.iter().for_each(|norm| add(&format!("{norm}.weight"), vec![self.hidden]));
        }
        for linear in linears {
            add(&format!("{}.weight", linear.name), vec![linear.outputs, linear.inputs]);
            if linear.bias {
                add(&format!("{}.bias", linear.name), vec![linear.outputs]);
            }
        }
        tensors
    }

    /// The number of linear layers for queries, keys and values, in a layer without linear attention.
    pub fn projections(&self) -> usize {
        if self.design.fused { 1 } else { 3 }
    }

    /// Width that is rotated in each head.
    pub fn rotary(&self) -> usize {
        self.design.rotary.unwrap_or(self.heads.dim)
    }

    /// Checks for values that make the decoder's arithmetic meaningless.
    ///
    /// # Errors
    /// Describes the problem by the names in `config.json`.
    pub fn check(&self) -> Result<(), String> {
        let mut sizes = vec![
            ("vocab_size", self.vocabulary),
            ("hidden_size", self.hidden),
            ("intermediate_size", self.intermediate),
            ("num_hidden_layers", self.layers),
            ("num_attention_heads", self.heads.query),
            ("num_key_value_heads", self.heads.kv),
            ("head_dim", self.heads.dim),
            ("max_position_embeddings", self.context),
            ("rotary width", self.rotary()),
            ("query_pre_attn_scalar", self.design.query_scalar.unwrap_or(1)),
        ];
        if let Some(experts) = self.design.experts {
            sizes.extend([("num_experts", experts.count), ("num_experts_per_tok", experts.per_token)]);
            // Each expert has its own linear layers, which are counted one by one.
            if experts.count > MOST_EXPERTS {
                return Err(format!("num_experts is {}", experts.count));
            }
            if experts.per_token > experts.count {
                return Err("num_experts_per_tok is larger than num_experts".into());
            }
        }
        if let Some(delta) = self.design.delta {
            let of_delta = [
                ("linear_num_key_heads", delta.key),
                ("linear_num_value_heads", delta.value),
                ("linear_key_head_dim", delta.key_dim),
                ("linear_value_head_dim", delta.value_dim),
                ("linear_conv_kernel_dim", delta.window),
            ];
            // Three of them are multiplied for the size of a state.
            if let Some((name, size)) = of_delta.iter().find(|(_, size)| *size > MOST_DELTA) {
                return Err(format!("{name} is {size}"));
            }
            sizes.extend(of_delta);
        }
        if let Some(window) = self.design.convolution {
            sizes.push(("conv_L_cache", window));
            if !(2..=MOST_DELTA).contains(&window) {
                return Err(format!("conv_L_cache is {window}"));
            }
        }
        if let Some((name, size)) = sizes.iter().find(|(_, size)| !(1..=u32::MAX as usize).contains(size)) {
            return Err(format!("{name} is {size}"));
        }
        if !self.heads.query.is_multiple_of(self.heads.kv) || !self.rotary().is_multiple_of(2) {
            return Err(
                "query heads must be a multiple of kv heads, and the rotary width must be even".into()
            );
        }
        if self.design.delta.is_some_and(|delta| !delta.value.is_multiple_of(delta.key)) {
            return Err("linear_num_value_heads must be a multiple of linear_num_key_heads".into());
        }
        if self.rotary() > self.heads.dim {
            return Err("partial_rotary_factor is above 1".into());
        }
        let thetas = [Some(self.rope_theta), self.design.sliding.and_then(|sliding| sliding.rope_theta)];
        let valid = |theta: &f64| theta.is_finite() && *theta > 0.0;
        if !(thetas.iter().flatten().all(valid) && self.norm_epsilon.is_finite()) {
            return Err("rope_theta and rms_norm_eps must be finite numbers".into());
        }
        let layers = &self.design.layers;
        if !layers.is_empty() && layers.len() != self.layers {
            return Err(format!("layer_types has {} entries for {} layers", layers.len(), self.layers));
        }
        if layers.contains(&LayerKind::SlidingAttention) && self.design.sliding.is_none() {
            return Err("layer_types has sliding_attention, but there is no sliding_window".into());
        }
        if layers.contains(&LayerKind::LinearAttention) && self.design.delta.is_none() {
            return Err("layer_types has linear_attention, which this model_type does not have".into());
        }
        if layers.contains(&LayerKind::Conv) && self.design.convolution.is_none() {
            return Err("layer_types has conv, which this model_type does not have".into());
        }
        if self.design.sliding.is_some_and(|sliding| sliding.window == 0) {
            return Err("sliding_window is 0".into());
        }
        self.design.scaling.problem(self.rotary()).map_or(Ok(()), Err)
    }

    /// `config.json` as Transformers reads it.
    pub fn to_json(&self) -> Value {
        let mut value = json!({
            "architectures": [self.design.family.class()],
            "model_type": self.design.family.model_type(),
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads.query,
            "num_key_value_heads": self.heads.kv,
            "head_dim": self.heads.dim,
            "max_position_embeddings": self.context,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": f64::from(self.norm_epsilon),
            "tie_word_embeddings": self.tied,
            "attention_bias": self.design.biases.output,
            "attention_dropout": 0.0,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "sliding_window": self.design.sliding.map(|sliding| sliding.window),
            "max_window_layers": self.layers,
            "use_sliding_window": self.design.sliding.is_some(),
            "use_cache": true,
            "torch_dtype": "float32",
        });
        if !self.design.layers.is_empty() {
            value["layer_types"] = json!(self.design.layers);
        }
        let scaling = &self.design.scaling;
        if *scaling != Scaling::Default {
            value["rope_scaling"] = json!(scaling);
        }
        if let Scaling::LongRope { original_max_position_embeddings: original, .. } = scaling {
            value["original_max_position_embeddings"] = json!(*original as usize);
        }
        // The default of Qwen3.5 is a part.
        if self.design.rotary.is_some() || self.design.family == Family::Qwen3_5 {
            value["partial_rotary_factor"] = json!(self.rotary() as f64 / self.heads.dim as f64);
        }
        if self.design.biases.feed_forward {
            value["mlp_bias"] = json!(true);
        }
        if let Some(delta) = self.design.delta {
            value["linear_num_key_heads"] = json!(delta.key);
            value["linear_num_value_heads"] = json!(delta.value);
            value["linear_key_head_dim"] = json!(delta.key_dim);
            value["linear_value_head_dim"] = json!(delta.value_dim);
            value["linear_conv_kernel_dim"] = json!(delta.window);
        }
        if let Some(window) = self.design.convolution {
            value["conv_L_cache"] = json!(window);
            value["norm_eps"] = json!(f64::from(self.norm_epsilon));
            value["block_auto_adjust_ff_dim"] = json!(false);
        }
        if self.design.gated {
            value["attn_output_gate"] = json!(true);
        }
        if self.design.family == Family::Gemma3 {
            value["hidden_activation"] = json!(GEMMA_ACTIVATION);
            value["query_pre_attn_scalar"] = json!(self.design.query_scalar);
            value["rope_local_base_freq"] = json!(self.design.sliding.and_then(|of| of.rope_theta));
            let others = ["hidden_act", "max_window_layers", "use_sliding_window"];
            value.as_object_mut().expect("made above").retain(|key, _| !others.contains(&key.as_str()));
        }
        if let Some(experts) = self.design.experts {
            value["moe_intermediate_size"] = json!(self.intermediate);
            value["num_experts"] = json!(experts.count);
            value["num_experts_per_tok"] = json!(experts.per_token);
            value["norm_topk_prob"] = json!(experts.normalised);
            value["decoder_sparse_step"] = json!(1);
            value["mlp_only_layers"] = json!([]);
        }
        value
    }
}
