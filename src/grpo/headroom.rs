//! What practice can add to a policy, from several samples of it on each task.

use std::fmt::{Display, Formatter};

use crate::text::percent;

/// The samples of a policy on one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Samples {
    pub right: u32,
    /// At least 1.
    pub of: u32,
    /// Whether the answer that most of them give is right.
    pub majority: bool,
}

/// Shares over tasks, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Headroom {
    pub tasks: usize,
    /// Samples of a task.
    pub samples: u32,
    /// Of right samples.
    pub success: f64,
    /// Of tasks with a right sample: pass@k.
    pub any: f64,
    /// Of tasks where the answer that most samples give is right: majority@k.
    pub majority: f64,
    /// Of tasks with right and wrong samples, which alone teach a policy gradient anything.
    pub mixed: f64,
}

/// What helps a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Too many tasks are wrong in all samples, where practice has nothing to reinforce.
    Solutions,
    Practice,
    /// Nearly everything is right already.
    Nothing,
    /// Nothing is right.
    Cannot,
}

/// The share of mixed tasks from which practice is worth its time: of 16 groups about three teach something.
const MIXED: f64 = 0.15;
/// The share of right samples above which there is nothing left.
const SOLVED: f64 = 0.95;
/// The share of tasks with a right sample below which the policy cannot do the tasks.
const HOPELESS: f64 = 0.1;

impl Headroom {
    /// Over these tasks. None if there are none.
    pub fn of(tasks: &[Samples]) -> Option<Self> {
        let share = |of: &dyn Fn(&Samples) -> f64| tasks.iter().map(of).sum::<f64>() / tasks.len() as f64;
        let flag = |holds: bool| f64::from(u8::from(holds));
        Some(Self {
            tasks: tasks.len(),
            samples: tasks.iter().map(|task| task.of).max()?,
            success: share(&|task| f64::from(task.right) / f64::from(task.of)),
            any: share(&|task| flag(task.right > 0)),
            majority: share(&|task| flag(task.majority)),
            mixed: share(&|task| flag(task.right > 0 && task.right < task.of)),
        })
    }

    pub fn advice(&self) -> Advice {
        if self.success >= SOLVED {
            Advice::Nothing
        } else if self.any < HOPELESS {
            Advice::Cannot
        } else if self.mixed >= MIXED {
            Advice::Practice
        } else {
            Advice::Solutions
        }
    }
}

impl Display for Headroom {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { tasks, samples, success, any, majority, mixed } = self;
        let [success, any, majority, mixed] = [success, any, majority, mixed].map(|share| percent(*share, 0));
        write!(
            f,
            "{samples} samples of each of {tasks} tasks: {success} % are right; at least one is right in {any} % of the \
             tasks, the answer that most give in {majority} %; {mixed} % have right and wrong ones"
        )
    }
}

impl Advice {
    /// What to do, in a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Self::Solutions => {
                "few tasks have right and wrong samples, and the others are not all right: practice would reinforce little; \
                 more tasks with reference solutions help more"
            }
            Self::Practice => "practice can help: it reinforces what is right now and then",
            Self::Nothing => "nothing is left to learn on these tasks; harder ones would show more",
            Self::Cannot => {
                "the model cannot do these tasks yet: give it reference solutions to learn from, easier tasks, or take a \
                 larger model"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(right: &[u32]) -> Vec<Samples> {
        right.iter().map(|right| Samples { right: *right, of: 8, majority: *right > 4 }).collect()
    }

    #[test]
    fn shares_are_over_tasks() {
        let found = Headroom::of(&tasks(&[8, 6, 2, 0])).unwrap();
        assert_eq!((found.tasks, found.samples), (4, 8));
        assert_eq!([found.success, found.any, found.majority, found.mixed], [0.5, 0.75, 0.5, 0.5]);
        assert_eq!(Headroom::of(&[]), None);
    }

    #[test]
    fn the_advice_follows_from_what_samples_show() {
        for (right, advice) in [
            (&[8, 6, 2, 0][..], Advice::Practice),
            (&[8, 8, 8, 8, 8, 8, 8, 8, 8, 7], Advice::Nothing),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], Advice::Cannot),
            (&[0, 0, 0, 8, 8, 8, 8, 8], Advice::Solutions),
        ] {
            assert_eq!(Headroom::of(&tasks(right)).unwrap().advice(), advice, "{right:?}");
        }
    }
}
