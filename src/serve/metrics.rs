//! Figures for Prometheus.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

/// Counters of a server.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Responses by path and status.
    responses: Mutex<BTreeMap<(&'static str, u16), u64>>,
    /// Requests whose client went before the end.
    pub cancelled: AtomicU64,
    pub prompt_tokens: AtomicU64,
    pub completion_tokens: AtomicU64,
    finished: AtomicU64,
    milliseconds: AtomicU64,
}

impl Metrics {
    pub fn responded(&self, path: &'static str, status: u16) {
        let mut responses = self.responses.lock();
        *responses.entry((path, status)).or_default() += 1;
    }

    pub fn finished(&self, after: Duration) {
        self.finished.fetch_add(1, Ordering::Relaxed);
        self.milliseconds.fetch_add(after.as_millis() as u64, Ordering::Relaxed);
    }

    /// The text format. `policies`: the tokens that each has sampled, computed and recomputed.
    pub fn text<'p>(
        &self,
        in_progress: usize,
        policies: impl Iterator<Item = (&'p str, [u64; 3])>,
    ) -> String {
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, about: &str, values: &[(String, f64)]| {
            _ = writeln!(text, "# HELP mcprl_{name} {about}\n# TYPE mcprl_{name} {kind}");
            for (labels, value) in values {
                _ = writeln!(text, "mcprl_{name}{labels} {value}");
            }
        };
        let one = |value: &AtomicU64| [(String::new(), value.load(Ordering::Relaxed) as f64)];
        let responses = self.responses.lock();
        let by_path = responses.iter().map(|((path, status), count)| {
            (format!("{{path=\"{path}\",status=\"{status}\"}}"), *count as f64)
        });
        metric("responses_total", "counter", "Responses.", &by_path.collect::<Vec<_>>());
        let now = [(String::new(), in_progress as f64)];
        metric("answers_in_progress", "gauge", "Answers that are sampled or wait for it.", &now);
        metric(
            "cancelled_total",
            "counter",
            "Requests whose client went before the end.",
            &one(&self.cancelled),
        );
        metric("finished_total", "counter", "Requests that were answered to the end.", &one(&self.finished));
        let seconds = [(String::new(), self.milliseconds.load(Ordering::Relaxed) as f64 / 1000.0)];
        metric("finished_seconds_total", "counter", "Time that those took.", &seconds);
        metric("prompt_tokens_total", "counter", "Tokens of their prompts.", &one(&self.prompt_tokens));
        metric(
            "completion_tokens_total",
            "counter",
            "Tokens of their answers.",
            &one(&self.completion_tokens),
        );
        let policies: Vec<(&str, [u64; 3])> = policies.collect();
        for (index, (name, about)) in [
            ("sampled_tokens_total", "Tokens that a policy has sampled."),
            ("computed_tokens_total", "Tokens that went through the decoder, sampled or given."),
            (
                "recomputed_tokens_total",
                "Tokens that were recomputed because their keys and values were evicted.",
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let of = |(policy, counts): &(&str, [u64; 3])| {
                let policy = policy.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                (format!("{{policy=\"{policy}\"}}"), counts[index] as f64)
            };
            metric(name, "counter", about, &policies.iter().map(of).collect::<Vec<_>>());
        }
        text
    }
}
