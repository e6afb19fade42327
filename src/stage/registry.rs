//! The built-in stage kinds: one line each.

use std::{future::Future, pin::Pin};

use super::{
    Context, Metrics,
    prospect::{Outlook, Prospect},
};
use crate::error::Result;

pub type StageFuture<'a> = Pin<Box<dyn Future<Output = Result<Metrics>> + Send + 'a>>;

/// A stage kind that is part of the binary.
pub struct BuiltIn {
    pub name: &'static str,
    /// Text of its `card.toml`.
    pub card: &'static str,
    /// Other files of its folder, by file name.
    pub files: &'static [(&'static str, &'static str)],
    pub run: fn(&Context) -> StageFuture<'_>,
    /// Checks the stage before it runs.
    pub look: fn(&Prospect<'_>) -> Outlook,
}

impl BuiltIn {
    pub fn file(&self, name: &str) -> Option<&'static str> {
        self.files.iter().find(|(file, _)| *file == name).map(|(_, text)| *text)
    }
}

/// `built_in!(judge, ["absolute.jinja"])`: the module `stage::judge` and the folder `stages/judge/`.
macro_rules! built_in {
    ($kind:ident, [$($file:literal),*]) => {
        BuiltIn {
            name: stringify!($kind),
            card: include_str!(concat!("../../stages/", stringify!($kind), "/card.toml")),
            files: &[$(($file, include_str!(concat!("../../stages/", stringify!($kind), "/", $file)))),*],
            run: |context| Box::pin(super::$kind::run(context)),
            look: super::$kind::look,
        }
    };
}

pub const BUILT_IN: &[BuiltIn] = &[
    built_in!(discover, []),
    built_in!(scenarios, []),
    built_in!(model, []),
    built_in!(adapter, []),
    built_in!(warmup, ["chat_template.jinja", "system.jinja"]),
    built_in!(rollout, ["system.jinja"]),
    built_in!(judge, ["relative.jinja"]),
    built_in!(grpo, []),
    built_in!(eval, ["system.jinja"]),
];

pub fn find(kind: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|built_in| built_in.name == kind)
}
