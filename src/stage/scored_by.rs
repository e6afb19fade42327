//! Whether answers or judges decide about rewards.

/// What decides about the rewards of episodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ScoredBy {
    /// Known answers and checks alone.
    Answers,
    /// Judges that see neither.
    Judges,
    Both,
}

impl ScoredBy {
    /// The parameter of stages that play by it.
    pub const PARAM: &str = "scored_by";

    /// What decides if another stage scores the episodes too.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self == other { self } else { Self::Both }
    }
}
