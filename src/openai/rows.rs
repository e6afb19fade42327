//! Sampled tokens of requests as rows of a trajectory.
//!
//! A client sends the whole conversation each time. A request whose prompt begins with all tokens of a row continues it: what
//! is new was not sampled, what is answered was. Any other request, such as one whose history was changed or shortened,
//! begins a row. So every token stands behind exactly those that it was sampled behind.

use crate::{agent::History, data::Message};

/// A sequence of tokens as the policy saw it.
#[derive(Debug, Default)]
struct Row {
    tokens: Vec<u32>,
    sampled: Vec<bool>,
    logprobs: Vec<f32>,
    messages: Vec<Message>,
}

/// The rows of a conversation, or of several that belong together.
#[derive(Debug, Default)]
pub struct Rows(Vec<Row>);

impl Rows {
    /// Tokens of the longest row that this prompt continues.
    pub fn continued(&self, prompt: &[u32]) -> Option<usize> {
        self.longest(prompt).map(|index| self.0[index].tokens.len())
    }

    fn longest(&self, prompt: &[u32]) -> Option<usize> {
        let is_continued = |row: &Row| prompt.starts_with(&row.tokens);
        let continued = self.0.iter().enumerate().filter(|(_, row)| is_continued(row));
        continued.max_by_key(|(_, row)| row.tokens.len()).map(|(index, _)| index)
    }

    /// Whether a row has this answer to this prompt.
    pub fn contains(&self, prompt: &[u32], answer: &[(u32, f32)]) -> bool {
        let has = |row: &Row| {
            let sampled = row.tokens.iter().zip(&row.sampled).skip(prompt.len());
            let wanted = answer.iter().map(|(token, _)| (token, &true));
            row.tokens.starts_with(prompt) && sampled.take(answer.len()).eq(wanted)
        };
        self.0.iter().any(has)
    }

    /// Adds an answer, given as sampled tokens with their log-probabilities. `messages` are those of the request and the
    /// answer. The same answer to the same request is added once.
    pub fn add(&mut self, prompt: &[u32], answer: &[(u32, f32)], messages: Vec<Message>) {
        if self.contains(prompt, answer) {
            return;
        }
        let longest = self.longest(prompt);
        let mut row = longest.map(|index| self.0.remove(index)).unwrap_or_default();
        row.tokens.extend(&prompt[row.tokens.len()..]);
        row.sampled.resize(row.tokens.len(), false);
        row.logprobs.resize(row.tokens.len(), 0.0);
        row.tokens.extend(answer.iter().map(|(token, _)| *token));
        row.sampled.resize(row.tokens.len(), true);
        row.logprobs.extend(answer.iter().map(|(_, logprob)| *logprob));
        row.messages = messages;
        self.0.push(row);
    }

    /// All rows, with the messages of the longest; of several, those of the one that was answered last.
    pub fn history(&self) -> History {
        let messages = self.0.iter().map(|row| &row.messages).max_by_key(|messages| messages.len());
        let mut history = History { messages: messages.cloned().unwrap_or_default(), ..History::default() };
        for (index, row) in self.0.iter().enumerate() {
            if index > 0 {
                history.row_starts.push(history.tokens.len());
            }
            history.tokens.extend(&row.tokens);
            history.sampled.extend(&row.sampled);
            history.logprobs.extend(&row.logprobs);
        }
        history
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(count: usize) -> Vec<Message> {
        vec![Message::default(); count]
    }

    #[test]
    fn a_request_that_begins_with_a_row_continues_it_and_any_other_begins_one() {
        let mut rows = Rows::default();
        rows.add(&[1, 2], &[(3, -0.5), (4, -0.25)], said(2));
        assert_eq!(rows.continued(&[1, 2, 3, 4, 5]), Some(4));
        assert_eq!(rows.continued(&[1, 2, 3]), None);
        rows.add(&[1, 2, 3, 4, 5], &[(6, -1.0)], said(4));
        // Its history was changed.
        rows.add(&[1, 2, 9, 5], &[(7, -2.0)], said(4));
        let History { tokens, sampled, logprobs, row_starts, .. } = rows.history();
        assert_eq!(tokens, [1, 2, 3, 4, 5, 6, 1, 2, 9, 5, 7]);
        let sampled: Vec<u8> = sampled.into_iter().map(u8::from).collect();
        assert_eq!(sampled, [0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 1]);
        assert_eq!(logprobs[2..6], [-0.5, -0.25, 0.0, -1.0]);
        assert_eq!((logprobs[10], row_starts), (-2.0, vec![6]));
    }

    #[test]
    fn an_answer_that_a_client_asks_for_again_stands_once() {
        let mut rows = Rows::default();
        for _ in 0..2 {
            rows.add(&[1], &[(2, -0.5)], said(2));
        }
        // Another choice of the same request.
        rows.add(&[1], &[(3, -0.5)], said(2));
        assert_eq!(rows.history().tokens, [1, 2, 1, 3]);
        // Also if the conversation went on.
        rows.add(&[1, 2, 4], &[(5, -0.5)], said(4));
        rows.add(&[1], &[(2, -0.5)], said(2));
        assert_eq!(rows.history().tokens, [1, 3, 1, 2, 4, 5]);
        // What was given is not what was sampled.
        rows.add(&[1, 2], &[(4, -0.5)], said(2));
        assert_eq!(rows.history().tokens.len(), 9);
    }

    #[test]
    fn the_longest_of_several_rows_is_continued_and_its_messages_are_those_of_all() {
        let mut rows = Rows::default();
        rows.add(&[1], &[(2, 0.0)], said(2));
        rows.add(&[1, 3], &[(4, 0.0)], said(4));
        rows.add(&[1, 2, 5], &[(6, 0.0)], said(3));
        assert_eq!(rows.history().tokens, [1, 3, 4, 1, 2, 5, 6]);
        assert_eq!(rows.history().messages.len(), 4);
    }
}
