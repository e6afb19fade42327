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
        let responses = self.responses.lock();
        let by_path = responses.iter().map(|((path, status), count)| {
            (format!("{{path=\"{path}\",status=\"{status}\"}}"), *count as f64)
        });
        metric("responses_total", "counter", "Responses.", &by_path.collect::<Vec<_>>());
        let now = [(String::new(), in_progress as f64)];
        metric("answers_in_progress", "gauge", "Answers that are sampled or wait for it.", &now);
        let count = |value: &AtomicU64| value.load(Ordering::Relaxed) as f64;
        for (name, about, value) in [
            ("cancelled_total", "Requests whose client went before the end.", count(&self.cancelled)),
            ("finished_total", "Requests that were answered to the end.", count(&self.finished)),
            ("finished_seconds_total", "Time that those took.", count(&self.milliseconds) / 1000.0),
            ("prompt_tokens_total", "Tokens of their prompts.", count(&self.prompt_tokens)),
            ("completion_tokens_total", "Tokens of their answers.", count(&self.completion_tokens)),
        ] {
            metric(name, "counter", about, &[(String::new(), value)]);
        }
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
