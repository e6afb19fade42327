//! A user's program scores episodes.
//!
//! It reads one JSON object per line from its standard input, one for each episode, and prints one for each:
//! `{"id": …, "score": 0.5, "explanation": "…"}`. Order does not matter. Scores are matched by id; an episode without a
//! score, with two, or with one outside 0 to 1 is an error, and so is an id that was not given. What the program prints to
//! standard error is shown.

use futures::FutureExt;
use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde_json::{Deserializer, Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{ChildStdin, Command},
};

use super::{JudgeError, JudgedTrajectory, Score};
use crate::{child, progress::Observer};

/// Bytes of a line that the program prints.
const LONGEST_LINE: u64 = 1 << 20;
/// Lines of its standard error that an error quotes.
const TAIL_LINES: usize = 12;

/// A program and how to run it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The words before the file, such as `python3`.
    pub interpreter: Vec<String>,
    pub file: PathBuf,
    /// An empty folder in which it runs.
    pub folder: PathBuf,
    pub seed: u64,
    pub timeout: Duration,
}

impl Program {
    /// Scores of all these episodes, in their order.
    ///
    /// # Errors
    /// If the program cannot be started, fails, takes too long or prints something else.
    pub async fn judge(
        &self,
        episodes: &[(JudgedTrajectory<'_>, Option<bool>)],
        observer: &dyn Observer,
    ) -> Result<Vec<Score>, JudgeError> {
        let mut tail = Vec::new();
        let judged = tokio::time::timeout(self.timeout, self.scores(episodes, observer, &mut tail)).await;
        let problem = match judged {
            Ok(Ok(scores)) => return Ok(scores),
            Ok(Err(problem)) => problem,
            Err(_) => format!("it did not end within {:?}", self.timeout),
        };
        let problem = [vec![problem], tail].concat().join("\n");
        Err(JudgeError::Program { program: self.shown(), problem })
    }

    fn shown(&self) -> String {
        let words = self.interpreter.iter().cloned().chain([self.file.display().to_string()]);
        words.collect::<Vec<_>>().join(" ")
    }

    async fn scores(
        &self,
        episodes: &[(JudgedTrajectory<'_>, Option<bool>)],
        observer: &dyn Observer,
        tail: &mut Vec<String>,
    ) -> Result<Vec<Score>, String> {
        let says = |what: &str| {
            let what = what.to_owned();
            move |cause: std::io::Error| format!("{what}: {cause}")
        };
        std::fs::create_dir_all(&self.folder).map_err(says("its folder cannot be made"))?;
        let mut words = program_words(&self.interpreter, &self.file).into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).current_dir(&self.folder).stdin(Stdio::piped());
        command.env("MCPRL_SEED", self.seed.to_string());
        let (mut child, _group) = child::spawn(command).await.map_err(says("it cannot be started"))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());

        let mut scores: BTreeMap<&str, Option<Score>> =
            episodes.iter().map(|(episode, _)| (episode.trajectory.id.as_str(), None)).collect();
        let write = feed(stdin, episodes);
        let read = async {
            let mut lines = Lines::of(stdout);
            while let Some(line) = lines.next().await? {
                if line.trim().is_empty() {
                    continue;
                }
                let (id, score) = score(&line)?;
                match scores.get_mut(id.as_str()) {
                    None => return Err(format!("it scored \"{id}\", which is not the id of an episode")),
                    Some(Some(_)) => return Err(format!("it scored {id} twice")),
                    Some(place) => *place = Some(score),
                }
            }
            Ok(())
        };
        let listen = async {
            let mut lines = Lines::of(stderr);
            // A line that is too long ends it.
            while let Ok(Some(line)) = lines.next().await {
                observer.output(&line);
                tail.push(line);
                if tail.len() > TAIL_LINES {
                    tail.remove(0);
                }
            }
        };
        // Ends at the first line that cannot be used; the program is killed when its group is dropped.
        let (write, listen) = (write.map(Ok::<_, String>), listen.map(Ok::<_, String>));
        tokio::try_join!(write, read, listen)?;
        let status = child.wait().await.map_err(says("its end is unknown"))?;
        if !status.success() {
            return Err(format!("it ended with {status}"));
        }
        let score = |(episode, _): &(JudgedTrajectory<'_>, _)| {
            let id = episode.trajectory.id.as_str();
            scores.get(id).cloned().flatten().ok_or_else(|| format!("it did not score {id}"))
        };
        episodes.iter().map(score).collect()
    }
}

/// The command line. It stays valid in another working directory: the file, and an interpreter with a slash, are absolute.
pub fn program_words(interpreter: &[String], file: &Path) -> Vec<OsString> {
    let absolute =
        |path: &Path| std::path::absolute(path).map_or_else(|_| path.into(), PathBuf::into_os_string);
    let mut words: Vec<OsString> = interpreter.iter().map(OsString::from).collect();
    if let Some(first) = words.first_mut().filter(|_| interpreter[0].contains('/')) {
        *first = absolute(Path::new(&interpreter[0]));
    }
    words.push(absolute(file));
    words
}

/// Writes the episodes, one by one. A program that does not read them all is judged by what it prints.
async fn feed(stdin: Option<ChildStdin>, episodes: &[(JudgedTrajectory<'_>, Option<bool>)]) {
    let Some(mut stdin) = stdin else { return };
    let mut given = std::collections::BTreeSet::new();
    for (JudgedTrajectory { scenario, trajectory }, correct) in episodes {
        if !given.insert(trajectory.id.as_str()) {
            continue;
        }
        let line = json!({
            "id": trajectory.id,
            "scenario": scenario.id,
            "policy": trajectory.policy,
            "task": scenario.task,
            "expected": scenario.answer,
            "answer": trajectory.answer,
            "correct": correct,
            "end": trajectory.end,
            "turns": trajectory.turns,
            "calls": trajectory.calls,
            "tool_errors": trajectory.tool_errors,
            "parse_failures": trajectory.parse_failures,
            "messages": trajectory.messages,
        });
        if stdin.write_all(format!("{line}\n").as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Reads a line that the program printed.
fn score(line: &str) -> Result<(String, Score), String> {
    let shown: String = line.trim().chars().take(100).collect();
    let wrong = |problem: &str| format!("{problem}: {shown}");
    // One value, so that a line with two does not lose the second.
    let mut values = Deserializer::from_str(line).into_iter::<Value>();
    let value = values.next().and_then(Result::ok).filter(|_| values.next().is_none());
    let value = value.filter(Value::is_object).ok_or_else(|| wrong("a line is not one JSON object"))?;
    let id = value["id"].as_str().ok_or_else(|| wrong("a line has no \"id\""))?;
    let score = value["score"].as_f64().filter(|score| (0.0..=1.0).contains(score));
    let score = score.ok_or_else(|| wrong("a line has no \"score\" between 0 and 1"))?;
    let explanation = value["explanation"].as_str().map(str::to_owned);
    Ok((id.to_owned(), Score { score, explanation, ..Score::default() }))
}

/// Lines of bounded length.
struct Lines<R>(Option<BufReader<R>>);

impl<R: AsyncRead + Unpin> Lines<R> {
    fn of(source: Option<R>) -> Self {
        Self(source.map(BufReader::new))
    }

    async fn next(&mut self) -> Result<Option<String>, String> {
        let Some(source) = &mut self.0 else { return Ok(None) };
        let mut line = Vec::new();
        let read = (&mut *source).take(LONGEST_LINE).read_until(b'\n', &mut line).await;
        match read {
            Err(cause) => Err(format!("its output cannot be read: {cause}")),
            Ok(0) => Ok(None),
            Ok(_) if line.len() as u64 >= LONGEST_LINE && line.last() != Some(&b'\n') => {
                Err(format!("it printed a line of more than {} MiB", LONGEST_LINE >> 20))
            }
            Ok(_) => Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        data::{Message, Scenario, Trajectory},
        progress::NoProgress,
    };

    async fn judged(script: &str, timeout: f64) -> Result<Vec<f64>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("score.sh");
        std::fs::write(&file, script).unwrap();
        let program = Program {
            interpreter: vec!["sh".into()],
            file,
            folder: folder.path().join("work"),
            seed: 7,
            timeout: Duration::from_secs_f64(timeout),
        };
        let scenario = Scenario { id: "s".into(), task: "t".into(), ..Scenario::default() };
        let trajectories = ["a", "b"].map(|id| Trajectory {
            id: id.into(),
            messages: vec![Message::assistant("x".repeat(200_000), Vec::new())],
            ..Trajectory::default()
        });
        let episodes: Vec<_> = trajectories
            .iter()
            .map(|trajectory| (JudgedTrajectory { scenario: &scenario, trajectory }, Some(true)))
            .collect();
        let scores = program.judge(&episodes, &NoProgress).await;
        scores
            .map(|scores| scores.iter().map(|score| score.score).collect())
            .map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn scores_are_matched_by_id_in_any_order() {
        let script = r#"[ $MCPRL_SEED = 7 ] || exit 1
            while read -r line; do id=$(echo "$line" | cut -c8); ids="$id $ids"; done
            for id in $ids; do case $id in a) s=0.25;; b) s=1;; esac
            echo "{\"id\": \"$id\", \"score\": $s}"; done"#;
        assert_eq!(judged(script, 30.0).await, Ok(vec![0.25, 1.0]));
        let unread =
            r#"echo '{"id": "b", "score": 0, "explanation": "no"}'; echo; echo '{"id": "a", "score": 1}'"#;
        assert_eq!(judged(unread, 30.0).await, Ok(vec![1.0, 0.0]), "a program that reads nothing");
    }

    #[test]
    fn a_relative_path_is_made_absolute_and_a_name_is_not() {
        let here = |path: &str| std::env::current_dir().unwrap().join(path).into_os_string();
        let words = |interpreter: &[&str]| {
            let interpreter: Vec<String> = interpreter.iter().map(|word| (*word).to_owned()).collect();
            program_words(&interpreter, Path::new("score.py"))
        };
        assert_eq!(words(&[]), [here("score.py")]);
        assert_eq!(words(&["python3", "./x"]), ["python3".into(), "./x".into(), here("score.py")]);
        assert_eq!(words(&["env/bin/python", "-u"]), [here("env/bin/python"), "-u".into(), here("score.py")]);
        assert_eq!(words(&["/bin/sh"]), ["/bin/sh".into(), here("score.py")]);
    }

    #[tokio::test]
    async fn a_program_that_fails_is_an_error_that_says_why() {
        let both = r#"echo '{"id": "a", "score": 1}'; echo '{"id": "b", "score": 1}'"#;
        let cases = [
            ("exit 3", "it ended with exit status: 3"),
            (&format!("{both}; exit 1"), "it ended with exit status: 1"),
            ("echo oops >&2; exit 3", "\noops"),
            (r#"echo '{"id": "a", "score": 1}'"#, "it did not score b"),
            (&format!("{both}; echo '{{\"id\": \"a\", \"score\": 1}}'"), "it scored a twice"),
            (
                &format!("{both}; echo '{{\"id\": \"c\", \"score\": 1}}'"),
                "it scored \"c\", which is not the id",
            ),
            (r#"echo '{"id": "a", "score": 2}'"#, "no \"score\" between 0 and 1"),
            (r#"echo '{"id": 1, "score": 1}'"#, "a line has no \"id\""),
            ("echo hello", "a line is not one JSON object: hello"),
            ("head -c 2000000 /dev/zero; sleep 60", "it printed a line of more than 1 MiB"),
            ("sleep 60", "it did not end within 5s"),
            ("exec 1>&-; sleep 60", "it did not end within 5s"),
        ];
        for (script, problem) in cases {
            let found = judged(script, 5.0).await.unwrap_err();
            assert!(found.contains(problem), "{script}: {found}");
        }
    }
}
