//! Self-consistency: the answer that most of several episodes give (Wang et al. 2022, maj@k), and whether any of them is right
//! (pass@k).

/// The name of a vote over this many episodes, in place of a policy's.
pub fn vote_name(votes: u32) -> String {
    format!("maj@{votes}")
}

/// The first episode with the answer that most give; of equally frequent answers, the one that was given first. Episodes without
/// an answer do not vote. None if no episode has one.
pub fn majority<'a>(
    answers: impl IntoIterator<Item = Option<&'a str>>,
    same: impl Fn(&str, &str) -> bool,
) -> Option<usize> {
    /// An answer, the first episode that gave it, and how many did.
    struct Candidate<'a> {
        answer: &'a str,
        first: usize,
        votes: usize,
    }
    let mut candidates: Vec<Candidate<'a>> = Vec::new();
    for (index, answer) in answers.into_iter().enumerate() {
        let Some(answer) = answer else { continue };
        match candidates.iter_mut().find(|candidate| same(candidate.answer, answer)) {
            Some(candidate) => candidate.votes += 1,
            None => candidates.push(Candidate { answer, first: index, votes: 1 }),
        }
    }
    let most = candidates.iter().map(|candidate| candidate.votes).max()?;
    candidates.into_iter().find(|candidate| candidate.votes == most).map(|candidate| candidate.first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_answer_wins_and_of_a_tie_the_first() {
        let same = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
        for (answers, expected) in [
            (&[Some("a"), Some("b"), Some("B")][..], Some(1)),
            (&[Some("a"), Some("b"), Some("B"), Some("A")], Some(0)),
            (&[None, None, Some("a"), None], Some(2)),
            (&[Some("b"), Some("a"), Some("c")], Some(0)),
            (&[None, None], None),
            (&[], None),
        ] {
            assert_eq!(majority(answers.iter().copied(), same), expected, "{answers:?}");
        }
    }
}
