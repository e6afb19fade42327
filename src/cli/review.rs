//! A review in the terminal: each item is shown, and a person accepts, edits, drops or skips it.

use std::io::BufRead;

use crate::exec::review::ReviewError;

/// What a person decides about an item.
pub enum Choice {
    Accept,
    Drop,
    /// The new texts; an empty one keeps the old text.
    Edit([String; 2]),
}

/// Asks for a decision on each item; returns how many are left.
///
/// `card` is what is shown of an item, by its number from 1. `questions` asks for the texts of an edit. `decide` keeps a
/// decision, or says why it is refused; then the person is asked again.
pub fn review<T>(
    items: &[T],
    input: &mut impl BufRead,
    say: &mut dyn FnMut(&str),
    card: impl Fn(&T, usize) -> String,
    questions: [&str; 2],
    mut decide: impl FnMut(&T, Choice) -> Result<Option<String>, ReviewError>,
) -> Result<usize, ReviewError> {
    let mut skipped = 0;
    for (place, item) in items.iter().enumerate() {
        let left = items.len() - place + skipped;
        say(&card(item, place + 1));
        loop {
            let key = asked(input, say, "[a]ccept, [e]dit, [d]rop, [s]kip, [q]uit: ");
            let choice = match key.as_deref().map(str::to_lowercase).as_deref() {
                Some("a") => Choice::Accept,
                Some("d") => Choice::Drop,
                Some("e") => {
                    let Some(first) = asked(input, say, questions[0]) else { return Ok(left) };
                    let Some(second) = asked(input, say, questions[1]) else { return Ok(left) };
                    Choice::Edit([first, second])
                }
                Some("s") => {
                    skipped += 1;
                    break;
                }
                None | Some("q") => return Ok(left),
                Some(_) => continue,
            };
            match decide(item, choice)? {
                None => break,
                Some(refused) => say(&format!("{refused}\n")),
            }
        }
    }
    Ok(skipped)
}

/// Asks a person, and reads a line. None at the end of the input.
fn asked(input: &mut impl BufRead, say: &mut dyn FnMut(&str), question: &str) -> Option<String> {
    say(question);
    let mut line = String::new();
    match input.read_line(&mut line) {
        Ok(1..) => Some(line.trim().to_owned()),
        Ok(0) | Err(_) => None,
    }
}
