//! What the tokens of a turn may be: the interface between grammars and sampling.

/// What limits the tokens of a turn.
pub trait Guide: Send + Sync {
    /// Sets the logits of the tokens that may not come next to −∞.
    ///
    /// # Errors
    /// If it cannot tell.
    fn limit(&mut self, logits: &mut [f32]) -> Result<(), String>;

    /// Tells it the token that came.
    ///
    /// # Errors
    /// If it did not allow the token.
    fn advance(&mut self, token: u32) -> Result<(), String>;
}
