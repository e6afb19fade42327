//! Reads `adapter_config.json`, as far as it affects the arithmetic. Unsupported features are refused by
//! name.
//!
//! Module names are matched as in PEFT: a list of `target_modules` by equality or suffix, a string as a
//! regular expression over the full name, keys of `rank_pattern` and `alpha_pattern` as one over the end of
//! the name. A model with vision calls `model.layers` `model.language_model.layers`: either name counts.

use std::path::Path;

use serde_json::{Map, Value, json};
use tokenizers::utils::SysRegex;

use super::{ModelError, Role, is_plain_linear};
use crate::model::weights::read_json;

/// Which linear layers get an adapter: PEFT's `target_modules`.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// Every linear layer of the decoder layers.
    AllLinear,
    /// Names or suffixes: `q_proj`, `mlp.down_proj`.
    Names(Vec<String>),
    /// A regular expression over the full name: `.*\.(q|v)_proj`.
    Pattern(String),
}

/// The configuration of an adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterConfig {
    pub rank: usize,
    pub alpha: f32,
    /// Scale by alpha / √rank instead of alpha / rank (rsLoRA, Kalajdzievski 2023).
    pub rank_stabilised: bool,
    /// Probability that a value of an adapter's input is dropped, in training steps only; in `[0, 1)`.
    pub dropout: f64,
    pub targets: Targets,
    /// Separate ranks and alphas for modules whose names end like this. The first match counts.
    pub ranks: Vec<(String, usize)>,
    pub alphas: Vec<(String, f32)>,
}

/// Unsupported keys that change what an adapter computes or where it is attached. They may be absent, null,
/// false, zero or empty.
const UNSUPPORTED: [&str; 19] = [
    "alora_invocation_tokens",
    "arrow_config",
    "exclude_modules",
    "fan_in_fan_out",
    "kasa_config",
    "layer_replication",
    "layers_pattern",
    "layers_to_transform",
    "lora_bias",
    "modules_to_save",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
    "corda_config",
    "lora_ga_config",
];

/// Initialisations that change the base's weights, so the adapter does not fit the plain base.
const CHANGES_BASE: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

impl AdapterConfig {
    /// On every linear layer, scaled by alpha / rank.
    pub fn new(rank: usize, alpha: f32) -> Self {
        Self {
            rank,
            alpha,
            rank_stabilised: false,
            dropout: 0.0,
            targets: Targets::AllLinear,
            ranks: Vec::new(),
            alphas: Vec::new(),
        }
    }

    /// Reads `adapter_config.json` of a folder.
    pub fn load(folder: &Path) -> Result<Self, ModelError> {
        let path = folder.join("adapter_config.json");
        let map: Map<String, Value> = read_json(&path)?;
        Self::from_json(&map).map_err(|reason| ModelError::Config { path, reason })
    }

    fn from_json(map: &Map<String, Value>) -> Result<Self, String> {
        let get = |key: &str| map.get(key).filter(|value| !value.is_null());
        match get("peft_type").and_then(Value::as_str) {
            Some("LORA") => {}
            Some(other) => return Err(format!("peft_type {other} is not supported, only LORA")),
            None => return Err("peft_type is missing".into()),
        }
        if let Some(key) = UNSUPPORTED.into_iter().find(|key| get(key).is_some_and(is_set)) {
            return Err(format!("{key} {} is not supported", map[key]));
        }
        if let Some(bias) = get("bias").filter(|bias| *bias != "none") {
            return Err(format!("bias {bias} is not supported, only \"none\""));
        }
        if let Some(init) = get("init_lora_weights").and_then(Value::as_str)
            && CHANGES_BASE.iter().any(|name| init.starts_with(name))
        {
            return Err(format!(
                "init_lora_weights \"{init}\" changes the base's weights: convert the adapter to plain LoRA with PEFT"
            ));
        }
        let number = |key: &str| get(key).and_then(Value::as_f64).ok_or(format!("{key} should be a number"));
        let rank = get("r").and_then(Value::as_u64).filter(|rank| *rank > 0);
        let Some(rank) = rank else { return Err("r should be a whole number above 0".into()) };
        let patterns = |key: &str| -> Result<Vec<(String, f64)>, String> {
            let Some(value) = get(key) else { return Ok(Vec::new()) };
            let entries = value.as_object().into_iter().flatten();
            let entries = entries.map(|(name, value)| Some((name.clone(), value.as_f64()?)));
            let entries: Option<Vec<_>> = entries.collect();
            entries.filter(|_| value.is_object()).ok_or(format!("{key} should be a table of numbers"))
        };
        let ranks = patterns("rank_pattern")?;
        if let Some((name, rank)) = ranks.iter().find(|(_, rank)| *rank < 1.0 || rank.fract() != 0.0) {
            return Err(format!("rank_pattern.{name} should be a whole number above 0, found {rank}"));
        }
        let dropout = get("lora_dropout").and_then(Value::as_f64).unwrap_or(0.0);
        if !(0.0..1.0).contains(&dropout) {
            return Err(format!("lora_dropout should be at least 0 and below 1, found {dropout}"));
        }
        Ok(Self {
            rank: rank as usize,
            alpha: number("lora_alpha")? as f32,
            rank_stabilised: get("use_rslora").is_some_and(|value| value == true),
            dropout,
            targets: Targets::from_json(get("target_modules").unwrap_or(&Value::Null))?,
            ranks: ranks.into_iter().map(|(name, rank)| (name, rank as usize)).collect(),
            alphas: patterns("alpha_pattern")?
                .into_iter()
                .map(|(name, alpha)| (name, alpha as f32))
                .collect(),
        })
    }

    /// In PEFT's format. `base` names the base model. `modules` are the suffixes that cover every linear
    /// layer.
    pub fn to_json(&self, base: &str, modules: &[&str]) -> Value {
        let targets = match &self.targets {
            Targets::AllLinear => json!(modules),
            Targets::Names(names) => json!(names),
            Targets::Pattern(pattern) => json!(pattern),
        };
        let mut config = json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "use_rslora": self.rank_stabilised,
            "lora_dropout": self.dropout,
            "bias": "none",
            "fan_in_fan_out": false,
            "inference_mode": true,
            "target_modules": targets,
        });
        let mut put = |key: &str, entries: Map<String, Value>| {
            if !entries.is_empty() {
                config[key] = Value::Object(entries);
            }
        };
        put("rank_pattern", self.ranks.iter().map(|(name, rank)| (name.clone(), json!(rank))).collect());
        put("alpha_pattern", self.alphas.iter().map(|(name, alpha)| (name.clone(), json!(alpha))).collect());
        config
    }

    /// Rank and scale of the adapter on a linear layer, by its role and full name; none if it gets no
    /// adapter. `targeted` is [`Targets::matcher`].
    pub(super) fn at(
        &self,
        role: Role,
        module: &str,
        targeted: &impl Fn(&str) -> bool,
    ) -> Result<Option<(usize, f32)>, String> {
        match self.targets.include(role) && targeted(module) {
            true => self.of(module).map(Some),
            false => Ok(None),
        }
    }

    /// The configuration of a model with vision, whose modules with adapters are these: each by its full name there, with its
    /// own rank and alpha if it has them.
    pub(super) fn listing(&self, modules: &[String]) -> Result<Self, String> {
        let (mut names, mut ranks, mut alphas) = (Vec::new(), Vec::new(), Vec::new());
        for module in modules {
            let (rank, alpha) = self.sizes(module)?;
            let name = in_larger_model(module);
            if rank != self.rank {
                ranks.push((name.clone(), rank));
            }
            if alpha != self.alpha {
                alphas.push((name.clone(), alpha));
            }
            names.push(name);
        }
        Ok(Self { targets: Targets::Names(names), ranks, alphas, ..self.clone() })
    }

    /// Rank and alpha of the adapter of this module.
    fn sizes(&self, module: &str) -> Result<(usize, f32), String> {
        let rank = first_match(&self.ranks, module)?.unwrap_or(self.rank);
        Ok((rank, first_match(&self.alphas, module)?.unwrap_or(self.alpha)))
    }

    /// Rank and scale of the adapter of this module.
    pub fn of(&self, module: &str) -> Result<(usize, f32), String> {
        let (rank, alpha) = self.sizes(module)?;
        let scale = if self.rank_stabilised { alpha / (rank as f32).sqrt() } else { alpha / rank as f32 };
        Ok((rank, scale))
    }
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
    }
}

impl Targets {
    fn from_json(value: &Value) -> Result<Self, String> {
        match value {
            Value::String(text) if text == "all-linear" => Ok(Self::AllLinear),
            Value::String(pattern) => Ok(Self::Pattern(pattern.clone())),
            Value::Array(items) => {
                let names: Option<Vec<String>> =
                    items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
                names.map(Self::Names).ok_or("target_modules should be names".into())
            }
            _ => Err("target_modules should be a list of names or a pattern".into()),
        }
    }

    /// As written in a run file: `["all-linear"]`, names, or one pattern after `regex:`.
    pub fn from_names(names: &[String]) -> Self {
        match names {
            [one] if one == "all-linear" => Self::AllLinear,
            [one] if one.starts_with("regex:") => Self::Pattern(one["regex:".len()..].to_owned()),
            names => Self::Names(names.to_vec()),
        }
    }

    /// The inverse of [`Self::from_names`].
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::AllLinear => vec!["all-linear".into()],
            Self::Names(names) => names.clone(),
            Self::Pattern(pattern) => vec![format!("regex:{pattern}")],
        }
    }

    /// Whether layers of this role can be targets. PEFT does not treat routers and experts as linear layers,
    /// unless they are named.
    pub(super) fn include(&self, role: Role) -> bool {
        *self != Self::AllLinear || is_plain_linear(role)
    }

    /// Returns a function that decides by full name which modules get an adapter.
    ///
    /// # Errors
    /// Fails if the pattern is invalid.
    pub fn matcher(&self) -> Result<impl Fn(&str) -> bool + '_, String> {
        let regex = match self {
            Self::Pattern(pattern) => Some(compiled(&format!("^(?:{pattern})$"))?),
            Self::AllLinear | Self::Names(_) => None,
        };
        let fits = move |module: &String| match (self, &regex) {
            (Self::Names(names), _) => names.iter().any(|name| ends_with_name(module, name)),
            (_, Some(regex)) => regex.find_iter(module).next().is_some(),
            (_, None) => true,
        };
        Ok(move |module: &str| spellings(module).iter().any(&fits))
    }

    /// Whether a linear layer of this name may have an adapter in one decoder layer and none in another.
    pub(super) fn depend_on_layer(&self, linear: &str) -> bool {
        match self {
            Self::AllLinear => false,
            Self::Names(names) => names.iter().any(|name| name != linear && ends_with_name(name, linear)),
            Self::Pattern(_) => true,
        }
    }
}

/// The full name of a module of a decoder's layers: in a model of text, and in one with vision.
fn spellings(module: &str) -> [String; 2] {
    [module.to_owned(), in_larger_model(module)]
}

/// The name that a module has in a model with vision.
pub(super) fn in_larger_model(module: &str) -> String {
    module.replacen("model.", "model.language_model.", 1)
}

/// `model.layers.0.self_attn.q_proj` ends with the names `q_proj` and `self_attn.q_proj`, but not with
/// `proj`.
fn ends_with_name(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn first_match<T: Copy>(patterns: &[(String, T)], module: &str) -> Result<Option<T>, String> {
    for (pattern, value) in patterns {
        for module in spellings(module) {
            if matches_end(pattern, &module)? {
                return Ok(Some(*value));
            }
        }
    }
    Ok(None)
}

/// Whether a pattern matches a name, or its end from a dot on.
fn matches_end(pattern: &str, module: &str) -> Result<bool, String> {
    // Names need no compilation; there may be one for each module.
    if pattern.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte)) {
        let Some(start) = module.len().checked_sub(pattern.len()) else { return Ok(false) };
        let (before, end) = module.as_bytes().split_at(start);
        let is_same = |(pattern, byte): (u8, &u8)| pattern == b'.' || pattern == *byte;
        return Ok((before.is_empty() || before.ends_with(b".")) && pattern.bytes().zip(end).all(is_same));
    }
    Ok(compiled(&format!("^(?:.*\\.)?(?:{pattern})$"))?.find_iter(module).next().is_some())
}

fn compiled(pattern: &str) -> Result<SysRegex, String> {
    SysRegex::new(pattern).map_err(|error| format!("`{pattern}` is not a pattern: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const Q: &str = "model.layers.1.self_attn.q_proj";
    const DOWN: &str = "model.layers.0.mlp.down_proj";

    fn read(more: Value) -> Result<AdapterConfig, String> {
        let mut map = json!({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]});
        map.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        AdapterConfig::from_json(map.as_object().unwrap())
    }

    #[test]
    fn targets_match_as_in_peft() {
        let hold = |targets: Value| {
            let targets = Targets::from_json(&targets).unwrap();
            let targeted = targets.matcher().unwrap();
            [Q, DOWN].map(targeted)
        };
        assert_eq!(hold(json!("all-linear")), [true, true]);
        assert_eq!(hold(json!(["q_proj", "v_proj"])), [true, false]);
        assert_eq!(hold(json!(["proj", "layers.0.mlp.down_proj"])), [false, true]);
        assert_eq!(hold(json!(r".*\.(q|v)_proj")), [true, false]);
        assert_eq!(hold(json!(r".*layers\.0\..*_proj")), [false, true]);
        assert_eq!(hold(json!("q_proj")), [false, false], "a pattern is over the whole name");
    }

    #[test]
    fn targets_of_a_run_file_are_names_or_one_pattern() {
        let from =
            |names: &[&str]| Targets::from_names(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        assert_eq!(from(&["all-linear"]), Targets::AllLinear);
        assert_eq!(from(&["q_proj", "v_proj"]), Targets::Names(vec!["q_proj".into(), "v_proj".into()]));
        assert_eq!(from(&[r"regex:.*\.q_proj"]), Targets::Pattern(r".*\.q_proj".into()));
    }

    #[test]
    fn a_module_may_have_its_own_rank_and_alpha() {
        let config =
            read(json!({"rank_pattern": {"q_proj": 2}, "alpha_pattern": {r"layers\.0\..*": 4}})).unwrap();
        assert_eq!(config.of(Q).unwrap(), (2, 8.0));
        assert_eq!(config.of(DOWN).unwrap(), (8, 0.5));
        let stable = AdapterConfig { rank_stabilised: true, ..AdapterConfig::new(16, 8.0) };
        assert_eq!(stable.of(Q).unwrap(), (16, 2.0));
    }

    #[test]
    fn a_module_of_a_model_with_vision_has_either_name() {
        let wide = in_larger_model(Q);
        for targets in
            [json!([wide]), json!(r"model\.language_model\..*\.q_proj"), json!(r"model\.layers\..*q_proj")]
        {
            let config = read(json!({"target_modules": targets})).unwrap();
            assert_eq!([Q, DOWN].map(config.targets.matcher().unwrap()), [true, false]);
        }
        for ranks in
            [json!({r"language_model\.layers\.1\..*": 2}), json!({r"model\.layers\.1\..*": 2}), json!({Q: 2})]
        {
            let config = read(json!({"rank_pattern": ranks})).unwrap();
            let listed = config.listing(&[Q, DOWN].map(str::to_owned)).unwrap();
            assert_eq!((listed.of(Q), listed.of(DOWN)), (Ok((2, 8.0)), Ok((8, 2.0))));
            assert_eq!((listed.ranks, listed.alphas), (vec![(in_larger_model(Q), 2)], vec![]));
            assert_eq!(listed.targets, Targets::Names([Q, DOWN].map(in_larger_model).to_vec()));
        }
    }

    #[test]
    fn unsupported_keys_are_refused_by_name() {
        for (more, name) in [
            (json!({"peft_type": "VERA"}), "peft_type VERA"),
            (json!({"use_dora": true}), "use_dora"),
            (json!({"modules_to_save": ["lm_head"]}), "modules_to_save"),
            (json!({"layers_to_transform": [0, 1]}), "layers_to_transform"),
            (json!({"bias": "all"}), "bias"),
            (json!({"init_lora_weights": "pissa_niter_16"}), "pissa_niter_16"),
            (json!({"r": 0}), "r should"),
            (json!({"target_modules": 3}), "target_modules"),
            (json!({"rank_pattern": {"q_proj": 0.5}}), "rank_pattern.q_proj"),
        ] {
            let reason = read(more).unwrap_err();
            assert!(reason.contains(name), "{reason}");
        }
        read(json!({"use_dora": false, "modules_to_save": null, "layers_pattern": [], "loftq_config": {}}))
            .unwrap();
    }
}
