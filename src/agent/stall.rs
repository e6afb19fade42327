//! Ends a run whose engine hangs.

use std::{sync::Arc, time::Duration};

use super::policy::PolicyHandle;
use crate::engine::{EngineError, Sampled, TokenSender};

/// How long an engine may compute no token for any episode while one waits for a turn. Much longer than any step takes.
pub const STALL: Duration = Duration::from_secs(600);
/// How often that is checked, within this time.
const CHECKS: u32 = 20;

/// A policy whose turns fail if the engine stops computing. There is no other limit on a turn's time: an episode may wait
/// as long as others make progress.
pub struct Watched<P, F> {
    pub policy: P,
    /// A number that grows while the engine computes for any episode.
    pub progress: F,
    /// For how long it may stay the same.
    pub stall: Duration,
}

impl<P: PolicyHandle + Sync, F: Fn() -> u64 + Send + Sync> PolicyHandle for Watched<P, F> {
    async fn turn(
        &mut self,
        append: &[u32],
        stop: &[u32],
        max_new: usize,
        tokens: Option<TokenSender>,
    ) -> Result<Sampled, EngineError> {
        let Self { policy, progress, stall } = self;
        let turn = policy.turn(append, stop, max_new, tokens);
        tokio::select! {
            biased;
            sampled = turn => sampled,
            () = stalled(progress, *stall) => Err(EngineError::Stalled { minutes: stall.as_secs() / 60 }),
        }
    }

    fn reopen(&mut self, pieces: Vec<Arc<[u32]>>) {
        self.policy.reopen(pieces);
    }
}

/// Returns when the number has not grown for this long.
async fn stalled(progress: &impl Fn() -> u64, stall: Duration) {
    let (mut last, mut still) = (progress(), 0);
    while still < CHECKS {
        tokio::time::sleep(stall / CHECKS).await;
        let now = progress();
        still = if now == last { still + 1 } else { 0 };
        last = now;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::engine::Stop;

    const SHORT: Duration = Duration::from_millis(100);

    /// A turn that takes three times as long as the engine may stand still.
    struct Slow;

    impl PolicyHandle for Slow {
        async fn turn(
            &mut self,
            _: &[u32],
            _: &[u32],
            _: usize,
            _: Option<TokenSender>,
        ) -> Result<Sampled, EngineError> {
            tokio::time::sleep(3 * SHORT).await;
            Ok(Sampled { tokens: vec![1], logprobs: vec![0.0], stop: Stop::Token, ..Sampled::default() })
        }

        fn reopen(&mut self, _: Vec<Arc<[u32]>>) {}
    }

    #[tokio::test]
    async fn a_turn_may_wait_while_the_engine_computes_and_fails_when_it_stops() {
        let count = AtomicU64::new(0);
        let mut busy =
            Watched { policy: Slow, progress: || count.fetch_add(1, Ordering::Relaxed), stall: SHORT };
        assert_eq!(busy.turn(&[], &[], 1, None).await.unwrap().tokens, [1]);
        let mut hanging = Watched { policy: Slow, progress: || 7, stall: SHORT };
        let error = hanging.turn(&[], &[], 1, None).await.unwrap_err();
        assert!(matches!(error, EngineError::Stalled { .. }), "{error}");
    }
}
