//! The size of an adapter before it is created.

use super::{Adapter, AdapterConfig, Decoder, LinearShape, ModelConfig, Role, module};
use crate::model::kernels::Format;

/// The size of an adapter over all layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AdapterSize {
    /// Values per token between the two matrices: the sum of the ranks that the token uses.
    pub ranks: usize,
    /// Values of the matrices.
    pub values: usize,
    /// Values of their packed copies.
    pub packed: usize,
}

impl AdapterSize {
    /// The size of adapters on linear layers, each with its rank and its number of decoder layers.
    fn of<'a>(
        config: &ModelConfig,
        adapters: impl IntoIterator<Item = (&'a LinearShape, usize, usize)>,
    ) -> Self {
        // A rank whose byte count overflows is never sensible.
        let packed = |outputs: usize, inputs: usize| match outputs.checked_mul(inputs) {
            Some(values) if values < 1 << 60 => Format::F32.bytes(outputs, inputs) / size_of::<f32>(),
            _ => usize::MAX,
        };
        let (mut size, mut of_experts) = (Self::default(), 0_usize);
        for (shape, rank, layers) in adapters {
            let ranks = if shape.role == Role::Expert { &mut of_experts } else { &mut size.ranks };
            *ranks = ranks.saturating_add(rank.saturating_mul(layers));
            let add =
                |sum: &mut usize, of_layer: usize| *sum = sum.saturating_add(of_layer.saturating_mul(layers));
            add(&mut size.values, rank.saturating_mul(shape.inputs + shape.outputs));
            let matrices = packed(rank, shape.inputs).saturating_add(packed(shape.outputs, rank));
            add(&mut size.packed, matrices);
        }
        let passed = config
            .design
            .experts
            .map_or(0, |experts| of_experts.saturating_mul(experts.per_token).div_ceil(experts.count));
        Self { ranks: size.ranks.saturating_add(passed), ..size }
    }
}

impl AdapterConfig {
    /// The size of such an adapter on a model of this configuration.
    ///
    /// # Errors
    /// Fails if one of its patterns is invalid.
    pub fn size(&self, config: &ModelConfig) -> Result<AdapterSize, String> {
        let targeted = self.targets.matcher()?;
        let kinds: Vec<_> =
            config.kinds().into_iter().map(|(kind, layers)| (layers, kind, config.linears(kind))).collect();
        let mut adapters = Vec::new();
        for (layers, kind, shapes) in &kinds {
            let is_of_kind = |layer: &usize| config.layer(*layer).by_weights() == *kind;
            let of_kind = || (0..config.layers).filter(is_of_kind);
            for shape in shapes {
                // One layer stands for all if their ranks are the same.
                let is_same = self.ranks.is_empty() && !self.targets.depend_on_layer(&shape.name);
                let (tried, times) = if is_same { (1, *layers) } else { (config.layers, 1) };
                for layer in of_kind().take(tried) {
                    let rank = self.at(shape.role, &module(layer, &shape.name), &targeted)?;
                    adapters.extend(rank.map(|(rank, _)| (shape, rank, times)));
                }
            }
        }
        Ok(AdapterSize::of(config, adapters))
    }
}

impl Adapter {
    /// The size of the adapter on this decoder; none if it has no adapter.
    pub fn size(decoder: &Decoder) -> Option<AdapterSize> {
        let config = &decoder.config;
        let shapes: Vec<_> =
            (0..decoder.layers.len()).map(|layer| config.linears(config.layer(layer))).collect();
        let linears =
            decoder.layers.iter().zip(&shapes).flat_map(|(layer, of)| of.iter().zip(&layer.linears));
        let adapters: Vec<_> = linears
            .filter_map(|(shape, linear)| Some((shape, linear.lora.as_ref()?.a.outputs(), 1)))
            .collect();
        (!adapters.is_empty()).then(|| AdapterSize::of(&decoder.config, adapters))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Design, Experts, Family, Init, Targets};

    fn mixture() -> ModelConfig {
        let experts = Some(Experts { count: 8, per_token: 2, normalised: true });
        let design = Design { experts, ..Design::of(Family::Qwen3Moe) };
        ModelConfig { layers: 3, design, ..ModelConfig::small() }
    }

    #[test]
    fn the_estimated_size_of_an_adapter_is_its_size() {
        let names = |names: &[&str]| Targets::Names(names.iter().map(|name| (*name).to_owned()).collect());
        let (q, kv) = (48 + 64, 48 + 32);
        // Ranks that a token uses, and values per rank.
        for (targets, ranks, values) in [
            (Targets::AllLinear, 3 * 4, 3 * (2 * q + 2 * kv)),
            (names(&["q_proj", "v_proj"]), 3 * 2, 3 * (q + kv)),
            (names(&["layers.1.self_attn.q_proj"]), 1, q),
            (Targets::Pattern(r".*layers\.[02]\..*\.q_proj".into()), 2, 2 * q),
            (names(&["up_proj"]), 3 * 2, 3 * 8 * (48 + 80)),
        ] {
            for mut config in [AdapterConfig::new(5, 10.0), AdapterConfig::new(64, 10.0)] {
                config.targets = targets.clone();
                let mut decoder = Decoder::random(mixture(), Init { seed: 1, deviation: 0.1 }).unwrap();
                Adapter::fresh(&mut decoder, &config, 1).unwrap();
                let size = config.size(&mixture()).unwrap();
                assert_eq!(Some(size), Adapter::size(&decoder), "{targets:?}");
                let expected = (config.rank * ranks, config.rank * values);
                assert_eq!((size.ranks, size.values), expected, "{targets:?}");
                let trained = decoder.trained().unwrap();
                assert_eq!(size.values, trained.iter().map(|p| p.tensor().elem_count()).sum::<usize>());
            }
        }
    }

    #[test]
    fn a_module_with_its_own_rank_counts_with_it() {
        let mut config = AdapterConfig::new(4, 8.0);
        config.targets = Targets::Names(vec!["q_proj".into()]);
        config.ranks = vec![(r"layers\.0\..*".into(), 9)];
        assert_eq!(config.size(&mixture()).unwrap().ranks, 9 + 4 + 4);
    }
}
