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
    card!(scenarios, ["generate.jinja", "system.jinja"]),
    card!(model, []),
    card!(adapter, []),
    card!(warmup, ["chat_template.jinja", "system.jinja"]),
    card!(demonstrations, ["system.jinja"]),
    card!(sft, []),
    card!(rollout, ["system.jinja"]),
    card!(judge, ["relative.jinja", "rubric.jinja"]),
    card!(grpo, []),
    card!(eval, ["system.jinja"]),
];

pub fn embedded(kind: &str) -> Option<&'static EmbeddedCard> {
    EMBEDDED.iter().find(|card| card.kind == kind)
}
