//! A run as it goes by.

use std::{io::IsTerminal, sync::Arc};

use serde_json::json;

use super::{Printer, Voice, bars::Bars, human, lines::Lines};
use crate::{
    exec::{Event, Listener},
    plan::RerunReason,
    progress::{Observer, Silent},
};

/// How a run looks: bars or lines.
pub trait Face: Send + Sync {
    fn line(&self, text: &str);
    fn begin(&self, id: &str) -> Arc<dyn Observer>;
    fn end(&self, id: &str);
}

/// Shows a run's events.
pub struct RunView {
    printer: Printer,
    face: Box<dyn Face>,
}

impl RunView {
    /// Bars where standard error is a terminal, lines where it is not.
    pub fn new(printer: Printer) -> Self {
        let face: Box<dyn Face> = match std::io::stderr().is_terminal() && printer.voice == Voice::Human {
            true => Box::new(Bars::new()),
            false => Box::new(Lines(printer)),
        };
        Self { printer, face }
    }
}

impl Listener for RunView {
    fn event(&self, event: &Event<'_>) {
        if let Event::Finished { id, .. } | Event::Failed { id, .. } = event {
            self.face.end(id);
        }
        if let Event::Stopping = event {
            self.face.line("stopping: stages finish what they have in hand; Ctrl-C again to end now");
        }
        match self.printer.voice {
            Voice::Json => self.printer.data(&event_json(event).to_string()),
            Voice::Human => {
                if let Some(text) = event_text(event) {
                    self.face.line(&text);
                }
            }
        }
    }

    fn observer(&self, id: &str) -> Arc<dyn Observer> {
        match self.printer.voice {
            Voice::Human => self.face.begin(id),
            Voice::Json => Arc::new(Silent),
        }
    }
}

fn event_text(event: &Event<'_>) -> Option<String> {
    let line = |what: &str, id: &str, rest: &str| format!("{what:<8} {id:<24} {rest}").trim_end().to_owned();
    Some(match event {
        Event::Cached { id, metrics } => line("cached", id, &human::metrics(metrics)),
        Event::Started { id, reasons } => line("run", id, &because(reasons)),
        Event::Waiting { id, run, holder } => {
            line("wait", id, &format!("for run {run} (process {} on {})", holder.pid, holder.host))
        }
        Event::Finished { id, seconds, metrics } => {
            let (seconds, metrics) = (human::seconds(*seconds), human::metrics(metrics));
            line("done", id, &format!("{seconds:<10} {metrics}"))
        }
        Event::Differs { id, outputs } => {
            let text = format!(
                "wrote another `{}` than a run before it under the same key; the first one stands",
                outputs.join("`, `")
            );
            line("differs", id, &text)
        }
        Event::Failed { id, .. } => line("failed", id, ""),
        // The error itself is shown at the end, the loop's end by the iterations there are.
        Event::Skipped { .. } | Event::Stopping => return None,
    })
}

fn because(reasons: &[RerunReason]) -> String {
    match reasons {
        [] | [RerunReason::First] => String::new(),
        reasons => reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn event_json(event: &Event<'_>) -> serde_json::Value {
    match event {
        Event::Cached { id, metrics } => json!({ "event": "cached", "id": id, "metrics": metrics }),
        Event::Started { id, reasons } => json!({ "event": "started", "id": id, "reasons": reasons }),
        Event::Waiting { id, run, holder } => {
            json!({ "event": "waiting", "id": id, "run": run, "holder": holder })
        }
        Event::Finished { id, seconds, metrics } => {
            json!({ "event": "finished", "id": id, "seconds": seconds, "metrics": metrics })
        }
        Event::Skipped { id } => json!({ "event": "skipped", "id": id }),
        Event::Failed { id, failure } => json!({
            "event": "failed", "id": id,
            "error": { "code": failure.code(), "message": failure.to_string(), "hint": failure.hint() }
        }),
        Event::Differs { id, outputs } => json!({ "event": "differs", "id": id, "outputs": outputs }),
        Event::Stopping => json!({ "event": "stopping" }),
    }
}
