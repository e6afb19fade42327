//! What a server writes on stdout that is no message: the start of it is quoted where no message comes.

use mcprl_base::text::start_of;

/// Characters that are kept.
const SHOWN: usize = 160;

/// What a server has written that is no message.
#[derive(Default)]
pub(super) struct Noise {
    /// The last lines, from one that begins like a message.
    lines: String,
    /// A line without its end, so far.
    pub(super) rest: String,
}

impl Noise {
    pub(super) fn add(&mut self, line: &[u8]) {
        let text = start(line);
        // A message over several lines begins so.
        if text.starts_with('{') || self.lines.is_empty() {
            self.lines.clear();
        } else {
            self.lines.push(' ');
        }
        self.lines = start_of(&(std::mem::take(&mut self.lines) + &text), SHOWN);
    }

    pub(super) fn text(&self) -> String {
        match self.rest.is_empty() {
            true => self.lines.clone(),
            false => format!("{} {} (without the end of the line)", self.lines, self.rest).trim().to_owned(),
        }
    }
}

/// The start of a line, which may be of any length.
pub(super) fn start(line: &[u8]) -> String {
    let line = line.trim_ascii_start();
    start_of(String::from_utf8_lossy(&line[..line.len().min(4 * SHOWN)]).trim(), SHOWN)
}
