//! Limits of an endpoint: requests and tokens per minute, and money.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::LlmError;

/// Spreads requests evenly, so that no minute has more of them, or of their tokens, than allowed.
#[derive(Debug)]
pub struct RateLimiter {
    requests_per_minute: Option<u32>,
    tokens_per_minute: Option<u32>,
    next: Mutex<Next>,
}

#[derive(Debug)]
struct Next {
    request: Instant,
    token: Instant,
}

impl RateLimiter {
    pub fn new(requests_per_minute: Option<u32>, tokens_per_minute: Option<u32>) -> Self {
        let now = Instant::now();
        let next = Mutex::new(Next { request: now, token: now });
        Self { requests_per_minute, tokens_per_minute, next }
    }

    /// When a request of about this many tokens may be sent. Its place is taken.
    pub fn reserve(&self, now: Instant, tokens: u64) -> Instant {
        let mut next = self.next.lock();
        let at = now.max(next.request).max(next.token);
        if let Some(most) = self.requests_per_minute {
            next.request = at + share(1, most);
        }
        if let Some(most) = self.tokens_per_minute {
            next.token = at + share(tokens, most);
        }
        at
    }

    /// Corrects an estimate of tokens by what the endpoint counted.
    pub fn correct(&self, estimated: u64, counted: u64) {
        let Some(most) = self.tokens_per_minute else { return };
        let mut next = self.next.lock();
        let at = next.token;
        next.token = match counted.checked_sub(estimated) {
            Some(more) => at + share(more, most),
            None => at.checked_sub(share(estimated - counted, most)).unwrap_or(at),
        };
    }

    /// Sends nothing before this moment: the endpoint asked for it.
    pub fn pause(&self, until: Instant) {
        let mut next = self.next.lock();
        next.request = next.request.max(until);
    }
}

/// The time in which a limit allows this many.
fn share(count: u64, per_minute: u32) -> Duration {
    #[expect(clippy::cast_precision_loss, reason = "a duration")]
    Duration::from_secs_f64((60.0 * count as f64 / f64::from(per_minute.max(1))).min(3600.0))
}

/// Money that must not be exceeded. A request reserves the most that it may cost before it is sent.
#[derive(Debug)]
pub struct Ceiling {
    dollars: f64,
    state: Mutex<Spent>,
    released: Notify,
}

#[derive(Debug, Default)]
struct Spent {
    spent: f64,
    reserved: f64,
}

impl Ceiling {
    pub fn new(dollars: f64) -> Self {
        Self { dollars, state: Mutex::default(), released: Notify::new() }
    }

    /// Reserves money for a request. Waits for those in flight if only their reservations stand in the way.
    ///
    /// # Errors
    /// If the request might exceed the ceiling.
    pub async fn reserve(&self, most: f64) -> Result<Reservation<'_>, LlmError> {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.spent + state.reserved + most <= self.dollars {
                    state.reserved += most;
                    return Ok(Reservation { ceiling: self, most, cost: most });
                }
                if state.reserved <= 0.0 {
                    return Err(LlmError::Ceiling { ceiling: self.dollars, spent: state.spent });
                }
            }
            released.await;
        }
    }
}

/// Counts as spent when dropped: in full, unless the cost is known.
pub struct Reservation<'c> {
    ceiling: &'c Ceiling,
    most: f64,
    pub cost: f64,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut state = self.ceiling.state.lock();
        state.spent += self.cost;
        // Sums of floats may leave a residue.
        state.reserved = if state.reserved - self.most < 1e-12 { 0.0 } else { state.reserved - self.most };
        drop(state);
        self.ceiling.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_tokens_are_spread_over_the_minute() {
        let paces = [RateLimiter::new(Some(60), None), RateLimiter::new(None, Some(600))];
        let now = Instant::now();
        let waits = |pace: &RateLimiter, tokens: &[u64]| -> Vec<u64> {
            tokens.iter().map(|tokens| (pace.reserve(now, *tokens) - now).as_secs()).collect()
        };
        let [requests, tokens] = paces;
        assert_eq!(waits(&requests, &[10, 10, 10]), [0, 1, 2]);
        assert_eq!(waits(&tokens, &[100, 50]), [0, 10]);
        tokens.correct(50, 20);
        tokens.correct(100, 110);
        assert_eq!(waits(&tokens, &[1]), [13]);
        tokens.pause(now + Duration::from_secs(40));
        assert_eq!(waits(&tokens, &[1]), [40]);
    }

    #[tokio::test]
    async fn a_request_that_might_exceed_the_ceiling_is_not_sent() {
        let ceiling = Ceiling::new(1.0);
        let mut first = ceiling.reserve(0.6).await.ok().unwrap();
        // Waits for the first, whose cost turns out to be small.
        let second = async { ceiling.reserve(0.6).await.map(drop).is_ok() };
        let settle = async {
            first.cost = 0.1;
            drop(first);
        };
        assert!(futures::future::join(second, settle).await.0);
        let error = ceiling.reserve(0.6).await.err().unwrap();
        assert_eq!(
            error.to_string(),
            "the next request might cost more than `max_cost` = 1 dollars leaves: 0.70 are spent"
        );
    }
}
