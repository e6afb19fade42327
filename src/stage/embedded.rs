//! The cards of the built-in kinds, as the binary contains them.

/// The folder `stages/<kind>/` of a built-in kind.
pub struct EmbeddedCard {
    pub kind: &'static str,
    /// Text of its `card.toml`.
    pub card: &'static str,
    /// Its other files, by name.
    pub files: &'static [(&'static str, &'static str)],
}

impl EmbeddedCard {
    pub fn file(&self, name: &str) -> Option<&'static str> {
        self.files.iter().find(|(file, _)| *file == name).map(|(_, text)| *text)
    }
}

/// `stages/agent/params.toml`: the keys of `[agent]`.
pub const AGENT_PARAMS: &str = include_str!("../../stages/agent/params.toml");

/// The system prompt where `[agent]` names none.
pub const SYSTEM_PROMPT: &str = include_str!("../../stages/agent/system.jinja");

/// `card!(judge, ["rubric.jinja"])`: `stages/judge/card.toml` and the files beside it.
macro_rules! card {
    ($kind:ident, [$($file:literal),*]) => {
        EmbeddedCard {
            kind: stringify!($kind),
            card: include_str!(concat!("../../stages/", stringify!($kind), "/card.toml")),
            files: &[$(($file, include_str!(concat!("../../stages/", stringify!($kind), "/", $file)))),*],
        }
    };
}

/// In the order in which a run uses them.
pub const EMBEDDED: &[EmbeddedCard] = &[
    card!(discover, []),
    card!(scenarios, ["generate.jinja", "write.jinja"]),
    card!(model, []),
    card!(adapter, []),
    card!(demonstrations, []),
    card!(traces, []),
    card!(replay, []),
    card!(sft, []),
    card!(rollout, []),
    card!(headroom, []),
    card!(teacher, []),
    card!(judge, ["relative.jinja", "rubric.jinja", "yes_no.jinja"]),
    card!(grpo, []),
    card!(eval, []),
];

pub fn embedded(kind: &str) -> Option<&'static EmbeddedCard> {
    EMBEDDED.iter().find(|card| card.kind == kind)
}
