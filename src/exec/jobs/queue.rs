//! A batch system, used by its template: submits, lists and cancels jobs.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use minijinja::{Environment, UndefinedBehavior, value::Serde};
use parking_lot::Mutex;
use reqwest::{Client, Url, redirect::Policy};
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::Command,
    time::timeout,
};

use super::error::JobError;
use crate::{
    error::chain,
    net,
    plan::{Action, JobsSpec},
    secret::concealed,
    text::{is_hidden, start_of},
};

/// How long a command or a request may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of the longest answer that is read.
const LONGEST: usize = 64 << 20;
/// Bytes of the shortest value of a variable that may be a secret.
const SHORTEST_SECRET: usize = 8;
/// Characters of an answer that an error shows.
const SHOWN: usize = 600;

/// A batch system of a run file.
pub struct Queue {
    pub spec: JobsSpec,
    http: Client,
    /// Values of variables that templates have asked for. Answers may repeat them.
    variables: Arc<Mutex<BTreeSet<String>>>,
    listing: tokio::sync::Mutex<Option<Listing>>,
}

struct Listing {
    at: Instant,
    jobs: Result<BTreeMap<String, JobState>, String>,
}

/// What the batch system says of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// With what else it says.
    Pending(String),
    Running,
    /// How.
    Ended(String),
}

/// A command or request, as it is sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    Run { arguments: Vec<String>, input: String },
    Http { is_post: bool, url: String, headers: BTreeMap<String, String>, body: String },
}

impl Queue {
    pub fn new(spec: JobsSpec) -> Self {
        // Without a proxy or certificates of its own, this does not fail.
        // Headers are for this origin alone.
        let http = net::client().timeout(PATIENCE).redirect(Policy::none()).build().unwrap_or_default();
        Self { spec, http, variables: Arc::default(), listing: tokio::sync::Mutex::default() }
    }

    /// What the submission of a job would send. `about`: `job`, `script`, `log`, `run` and `stage`.
    ///
    /// # Errors
    /// If the template is wrong.
    pub fn submission(&self, about: &Map<String, Value>) -> Result<Call, JobError> {
        self.call(&self.spec.template.submit, "submit", about)
    }

    /// Submits a job.
    ///
    /// # Errors
    /// If the template is wrong, or the batch system refuses it.
    pub async fn submit(&self, about: &Map<String, Value>) -> Result<(), JobError> {
        let call = self.submission(about)?;
        self.send(call).await.map(drop).map_err(|problem| self.refused("submit a job", problem))
    }

    /// Cancels a job. One that has ended is no error.
    pub async fn cancel(&self, job: &str) -> Result<(), JobError> {
        let about = Map::from_iter([("job".to_owned(), job.into())]);
        let call = self.call(&self.spec.template.cancel, "cancel", &about)?;
        self.send(call).await.map(drop).map_err(|problem| self.refused("cancel a job", problem))
    }

    /// Asks whether jobs can run at all.
    ///
    /// # Errors
    /// If not, or if the batch system does not answer.
    pub async fn check(&self) -> Result<(), JobError> {
        let template = &self.spec.template;
        let (action, name) = match &template.check {
            Some(check) => (check, "check"),
            None => (&template.list, "list"),
        };
        let call = self.call(action, name, &Map::new())?;
        let answer =
            self.send(call).await.map_err(|problem| self.refused("ask the batch system", problem))?;
        let lines = self.lines(action, name, &answer)?;
        match lines.first().filter(|_| template.check.is_some()) {
            Some(problem) => {
                let problem = self.without_variables(&problem.join(" "));
                Err(JobError::NoRoom { executor: self.spec.name.clone(), problem })
            }
            None => Ok(()),
        }
    }

    /// What the batch system says of a job; none if it does not know it. Asked at most as often as the run file says, for all jobs
    /// at once.
    ///
    /// # Errors
    /// What is wrong, if it does not answer.
    pub async fn state(&self, job: &str) -> Result<Option<JobState>, String> {
        let mut listing = self.listing.lock().await;
        if listing.as_ref().is_none_or(|listing| listing.at.elapsed() >= self.spec.poll) {
            let jobs = self.list().await.map_err(|failure| failure.to_string());
            *listing = Some(Listing { at: Instant::now(), jobs });
        }
        match &*listing {
            Some(Listing { jobs: Ok(jobs), .. }) => Ok(jobs.get(job).cloned()),
            Some(Listing { jobs: Err(problem), .. }) => Err(problem.clone()),
            None => Ok(None),
        }
    }

    /// Makes the next question a new one.
    pub async fn forget(&self) {
        *self.listing.lock().await = None;
    }

    async fn list(&self) -> Result<BTreeMap<String, JobState>, JobError> {
        let action = &self.spec.template.list;
        let call = self.call(action, "list", &Map::new())?;
        let answer = self.send(call).await.map_err(|problem| self.refused("list the jobs", problem))?;
        self.listed(&answer)
    }

    /// The jobs in the answer of `list`.
    fn listed(&self, answer: &str) -> Result<BTreeMap<String, JobState>, JobError> {
        let action = &self.spec.template.list;
        let states = &self.spec.template.states;
        let mut jobs = BTreeMap::new();
        for line in self.lines(action, "list", answer)? {
            let [job, state, more @ ..] = line.as_slice() else { continue };
            let more = self.without_variables(&more.join(" "));
            let found = match () {
                () if states.pending.contains(state) => JobState::Pending(more),
                () if states.running.contains(state) => JobState::Running,
                () if more.is_empty() => JobState::Ended(state.clone()),
                () => JobState::Ended(format!("{state}, {more}")),
            };
            // One that goes on counts more than an earlier one of the same name.
            let is_open = |state: &JobState| !matches!(state, JobState::Ended(_));
            if !jobs.get(job).is_some_and(is_open) {
                jobs.insert(job.clone(), found);
            }
        }
        Ok(jobs)
    }

    fn refused(&self, action: &'static str, problem: String) -> JobError {
        let problem = self.without_variables(&problem);
        JobError::Refused { executor: self.spec.name.clone(), action, problem }
    }

    /// A text without the values of variables, and without characters that change how a terminal shows it.
    fn without_variables(&self, text: &str) -> String {
        let variables = self.variables.lock();
        let text = variables.iter().rev().fold(text.to_owned(), |text, value| text.replace(value, "…"));
        text.replace(is_hidden, "")
    }

    /// The beginning of an answer, without secrets.
    fn shown(&self, text: &str) -> String {
        start_of(&concealed(&self.without_variables(text.trim())), SHOWN)
    }

    fn call(
        &self,
        action: &Action,
        name: &'static str,
        about: &Map<String, Value>,
    ) -> Result<Call, JobError> {
        let mut values = self.spec.values.clone();
        values.extend(about.clone());
        let render = |text: &str| self.render(text, name, &values);
        if let Some(run) = &action.run {
            // Each line is an argument.
            let is_split =
                |value: &Value| value.as_str().is_some_and(|text| text.contains('\n') || text.trim() != text);
            if let Some((value, _)) = about.iter().find(|(_, value)| is_split(value)) {
                let problem = format!("`{value}` has a line break, or a blank at an end");
                return Err(JobError::Template { executor: self.spec.name.clone(), action: name, problem });
            }
            let text = render(run)?;
            let arguments = text.lines().map(str::trim).filter(|line| !line.is_empty());
            return Ok(Call::Run {
                arguments: arguments.map(str::to_owned).collect(),
                input: render(&action.input)?,
            });
        }
        let url = action.post.as_ref().or(action.get.as_ref()).map(String::as_str).unwrap_or_default();
        let mut headers = BTreeMap::new();
        for (header, value) in &action.headers {
            let value = render(value)?;
            if !value.is_empty() {
                headers.insert(header.clone(), value);
            }
        }
        Ok(Call::Http {
            is_post: action.post.is_some(),
            url: render(url)?,
            headers,
            body: render(&action.body)?,
        })
    }

    /// The lines of an answer, as words.
    fn lines(&self, action: &Action, name: &'static str, answer: &str) -> Result<Vec<Vec<String>>, JobError> {
        let mut values = self.spec.values.clone();
        if let Ok(parsed) = serde_json::from_str::<Value>(answer) {
            values.insert("answer".into(), parsed);
        }
        values.insert("output".into(), answer.into());
        let text = self.render(&action.lines, name, &values)?;
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        Ok(text.lines().map(words).filter(|words| !words.is_empty()).collect())
    }

    fn render(
        &self,
        text: &str,
        action: &'static str,
        values: &Map<String, Value>,
    ) -> Result<String, JobError> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("quote", |text: String| quoted(&text));
        let variables = Arc::clone(&self.variables);
        environment.add_function("env_var", move |name: String| {
            let value = std::env::var(name).unwrap_or_default();
            if value.len() >= SHORTEST_SECRET {
                variables.lock().insert(value.clone());
            }
            value
        });
        environment.render_str(text, minijinja::Value::from(Serde(values))).map_err(|cause| {
            JobError::Template { executor: self.spec.name.clone(), action, problem: cause.to_string() }
        })
    }

    /// Runs a command or sends a request. Returns the answer.
    ///
    /// # Errors
    /// What is wrong, without headers and input, which may hold secrets.
    async fn send(&self, call: Call) -> Result<String, String> {
        match call {
            Call::Run { arguments, input } => self.run(&arguments, &input).await,
            Call::Http { is_post, url, headers, body } => {
                let mut request = if is_post { self.http.post(&url) } else { self.http.get(&url) };
                for (name, value) in headers {
                    request = request.header(name, value);
                }
                if !body.trim().is_empty() {
                    // Checked, and without what a template leaves blank.
                    let body: Value = serde_json::from_str(&body)
                        .map_err(|cause| format!("its body is no JSON: {cause}"))?;
                    request = request.header("content-type", "application/json").body(body.to_string());
                }
                let failed = |cause: reqwest::Error| {
                    format!("{}: {}", without_permission(&url), chain(&cause.without_url()))
                };
                let mut answer = request.send().await.map_err(failed)?;
                let status = answer.status();
                let mut bytes = Vec::new();
                while let Some(chunk) = answer.chunk().await.map_err(failed)? {
                    if bytes.len() + chunk.len() > LONGEST {
                        return Err(format!("{}: {}", without_permission(&url), too_long()));
                    }
                    bytes.extend_from_slice(&chunk);
                }
                let text = String::from_utf8_lossy(&bytes).into_owned();
                match status.is_success() {
                    true => Ok(text),
                    false => Err(format!("{}: {status}: {}", without_permission(&url), self.shown(&text))),
                }
            }
        }
    }

    async fn run(&self, arguments: &[String], input: &str) -> Result<String, String> {
        let [program, arguments @ ..] = arguments else { return Err("its command is empty".into()) };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        // A Ctrl-C in the terminal is for the run.
        command.process_group(0);
        let mut child = command.spawn().map_err(|cause| format!("`{program}`: {cause}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that reads none may have ended.
            _ = stdin.write_all(input.as_bytes()).await;
        }
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let output = async {
            let (stdout, stderr) = tokio::try_join!(read(stdout), read(stderr))?;
            Ok::<_, String>((child.wait().await.map_err(|cause| cause.to_string())?, stdout, stderr))
        };
        let output = timeout(PATIENCE, output).await;
        let output =
            output.map_err(|_| format!("`{program}` has not ended after {} s", PATIENCE.as_secs()))?;
        let (status, stdout, stderr) = output.map_err(|problem| format!("`{program}`: {problem}"))?;
        if status.success() {
            return Ok(stdout);
        }
        let said = [stderr, stdout].into_iter().find(|said| !said.trim().is_empty());
        Err(format!("`{program}`: {status}: {}", self.shown(&said.unwrap_or_default())))
    }
}

/// What a program prints, up to the longest answer.
async fn read(from: Option<impl AsyncRead + Unpin>) -> Result<String, String> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        let read = from.take(LONGEST as u64 + 1).read_to_end(&mut bytes).await;
        read.map_err(|cause| cause.to_string())?;
    }
    if bytes.len() > LONGEST { Err(too_long()) } else { Ok(String::from_utf8_lossy(&bytes).into_owned()) }
}

fn too_long() -> String {
    format!("its answer is longer than {} MiB", LONGEST >> 20)
}

/// A word of a shell.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// An address without what lets somebody in: user, password and query.
fn without_permission(url: &str) -> String {
    let Ok(mut address) = url.parse::<Url>() else { return "its address".into() };
    address.set_query(None);
    // A URL with a host has both.
    _ = address.set_username("").and_then(|()| address.set_password(None));
    address.into()
}

/// The values that a job's templates see besides options and resources.
pub fn about(job: &str, stage: &str, run: &str, [script, log]: [&std::path::Path; 2]) -> Map<String, Value> {
    let about = json!({ "job": job, "stage": stage, "run": run, "script": script, "log": log });
    about.as_object().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{OnInterrupt, TEMPLATES, Template};

    /// A queue of this template, with these values beside the defaults of its options.
    fn queue(kind: &str, values: Value) -> Queue {
        let (_, text) = TEMPLATES.iter().find(|(name, _)| *name == kind).unwrap();
        let template = Template::parse(text).unwrap();
        let defaults = template.options.iter();
        let mut all: Map<String, Value> =
            defaults.filter_map(|(name, option)| Some((name.clone(), option.default.clone()?))).collect();
        all.insert("resources".into(), json!({}));
        all.extend(values.as_object().cloned().unwrap());
        Queue::new(JobsSpec {
            name: kind.into(),
            template,
            values: all,
            jobs: 1,
            attempts: 1,
            poll: Duration::ZERO,
            setup: String::new(),
            program: None,
            on_interrupt: OnInterrupt::Cancel,
        })
    }

    fn submission(queue: &Queue) -> Call {
        let paths = ["/a b/script", "/a b/log"].map(std::path::Path::new);
        queue.submission(&about("mcprl-a-1", "train[0001]/rollout", "run", paths)).unwrap()
    }

    fn pending(why: &str) -> JobState {
        JobState::Pending(why.into())
    }

    fn ended(how: &str) -> JobState {
        JobState::Ended(how.into())
    }

    #[test]
    fn slurm_is_asked_for_what_the_run_file_wants() {
        let resources = json!({ "gpus": 2, "cpus": 8, "memory_gib": 1.5, "time_s": 90 });
        let queue = queue(
            "slurm",
            json!({ "resources": resources, "partition": "gpu", "arguments": ["--exclusive", "--x=a b"] }),
        );
        let Call::Run { arguments, .. } = submission(&queue) else { panic!() };
        assert_eq!(
            arguments,
            [
                "sbatch",
                "--requeue",
                "--export=ALL",
                "--open-mode=append",
                "--job-name=mcprl-a-1",
                "--output=/a b/log",
                "--partition=gpu",
                "--cpus-per-task=8",
                "--gres=gpu:2",
                "--mem=1536M",
                "--time=2",
                "--exclusive",
                "--x=a b",
                "/a b/script",
            ]
        );
        let Call::Run { arguments, .. } = submission(&self::queue("slurm", json!({}))) else { panic!() };
        assert_eq!(arguments.len(), 7, "what is not given is left out: {arguments:?}");
    }

    /// Answers of squeue 22.05.8.
    #[test]
    fn states_of_slurm_are_read_whatever_their_reasons() {
        let jobs = queue("slurm", json!({})).listed(
            "a|PENDING|Resources\nb|RUNNING|None\nc|COMPLETED|None\nd|FAILED|NonZeroExitCode\ne|NODE_FAIL|NodeDown\n\
             f|PENDING|ReqNodeNotAvail, UnavailableNodes:n2\ng|COMPLETING|None\nh|TIMEOUT|TimeLimit\n\
             i|FAILED|BadConstraints\ni|RUNNING|None\n",
        );
        let expected = [
            ("a", pending("Resources")),
            ("b", JobState::Running),
            ("c", ended("COMPLETED, None")),
            ("d", ended("FAILED, NonZeroExitCode")),
            ("e", ended("NODE_FAIL, NodeDown")),
            ("f", pending("ReqNodeNotAvail, UnavailableNodes:n2")),
            ("g", JobState::Running),
            ("h", ended("TIMEOUT, TimeLimit")),
            ("i", JobState::Running),
        ];
        assert_eq!(jobs.unwrap(), expected.map(|(name, state)| (name.to_owned(), state)).into());
    }

    /// Answers of Ray 2.60.
    #[test]
    fn ray_is_asked_by_requests_and_its_answers_are_read() {
        let queue = queue(
            "ray",
            json!({ "resources": { "cpus": 2, "memory_gib": 0.5 }, "token_env": "MCPRL_NO_SUCH" }),
        );
        let Call::Http { is_post: true, url, headers, body } = submission(&queue) else { panic!() };
        assert_eq!((url.as_str(), headers.len()), ("http://127.0.0.1:8265/api/jobs/", 0));
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["entrypoint"], "exec sh '/a b/script'");
        assert_eq!(
            (&body["entrypoint_num_cpus"], &body["entrypoint_memory"]),
            (&json!(2), &json!(536_870_912))
        );
        let job = |name: &str, status: &str, message: &str| json!({ "submission_id": name, "status": status, "message": message, "type": "SUBMISSION" });
        let answer = json!([
            job("a", "PENDING", "Job has not started yet."),
            job("b", "RUNNING", "Job is currently running."),
            job("c", "FAILED", "Job entrypoint command failed with exit code 7, last available logs:\nsome"),
        ]);
        let expected = [
            ("a", pending("Job has not started yet.")),
            ("b", JobState::Running),
            ("c", ended("FAILED, Job entrypoint command failed with exit code 7, last available logs: some")),
        ];
        assert_eq!(
            queue.listed(&answer.to_string()).unwrap(),
            expected.map(|(name, state)| (name.to_owned(), state)).into()
        );
        let check = queue.spec.template.check.clone().unwrap();
        let node = |state: &str, cpus: f64| json!({ "state": state, "resources_total": { "CPU": cpus, "memory": 4e9 } });
        let room = |nodes: Value| {
            let answer = json!({ "data": { "result": { "result": nodes } } }).to_string();
            queue.lines(&check, "check", &answer).unwrap().is_empty()
        };
        assert!(room(json!([node("ALIVE", 1.0), node("ALIVE", 2.0)])));
        assert!(!room(json!([node("ALIVE", 1.0), node("DEAD", 4.0)])));
    }

    /// The shapes of `batch/v1`; no cluster was asked.
    #[test]
    fn kubernetes_gets_a_job_and_its_conditions_are_read() {
        let values = json!({
            "image": "mcprl:1", "claim": "work", "mount": "/work", "queue": "gpus", "secret": "keys", "uid": 1000,
            "resources": { "gpus": 1, "time_s": 60 },
        });
        let queue = queue("kubernetes", values);
        let Call::Run { arguments, input } = submission(&queue) else { panic!() };
        assert_eq!(arguments, ["kubectl", "create", "--filename=-"]);
        let job: Value = serde_json::from_str(&input).unwrap();
        assert_eq!(job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "gpus");
        let container = &job["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["command"], json!(["/bin/sh", "/a b/script"]));
        assert_eq!(container["resources"]["limits"], json!({ "nvidia.com/gpu": "1" }));
        assert_eq!(job["spec"]["template"]["spec"]["securityContext"]["runAsUser"], 1000);
        assert_eq!(container["envFrom"][0]["secretRef"]["name"], "keys");
        assert_eq!(job["spec"]["template"]["spec"]["activeDeadlineSeconds"], 60);
        let item = |name: &str, status: Value| json!({ "metadata": { "name": name }, "status": status });
        let condition = |kind: &str, reason: &str| {
            json!([
                { "type": "SuccessCriteriaMet", "status": "True" },
                { "type": kind, "status": "True", "reason": reason, "message": "a message" },
            ])
        };
        let answer = json!({ "items": [
            item("a", json!({})),
            item("b", json!({ "active": 1, "ready": 0 })),
            item("c", json!({ "active": 1, "ready": 1 })),
            item("d", json!({ "succeeded": 1, "conditions": condition("Complete", "CompletionsReached") })),
            item("e", json!({ "failed": 1, "conditions": condition("Failed", "BackoffLimitExceeded") })),
            item("f", json!({ "conditions": [{ "type": "Suspended", "status": "True" }] })),
        ]});
        let expected = [
            ("a", pending("")),
            ("b", pending("")),
            ("c", JobState::Running),
            ("d", ended("Complete, CompletionsReached a message")),
            ("e", ended("Failed, BackoffLimitExceeded a message")),
            ("f", pending("")),
        ];
        assert_eq!(
            queue.listed(&answer.to_string()).unwrap(),
            expected.map(|(name, state)| (name.to_owned(), state)).into()
        );
    }

    /// Lines of procps and of a command that only has the word in it.
    #[test]
    fn jobs_of_this_machine_are_processes() {
        let queue = queue("local", json!({}));
        let Call::Run { arguments, .. } = submission(&queue) else { panic!() };
        assert_eq!(arguments[4..], ["mcprl-a-1", "/a b/script", "/a b/log"]);
        let beside = "sh -c trap : TERM; sh \"$3\"; echo \"ended with code $?\" mcprl-local";
        let jobs = queue.listed(&format!(
            "/sbin/init\n{beside} mcprl-a-1 RUNNING /a b/script\n{beside} mcprl-b-2 RUNNING /b/scr\ngrep mcprl-local \n"
        ));
        let expected = ["mcprl-a-1", "mcprl-b-2"].map(|name| (name.to_owned(), JobState::Running));
        assert_eq!(jobs.unwrap(), expected.into());
    }

    #[tokio::test]
    async fn an_error_has_no_password_of_an_address_and_a_path_stays_one_argument() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut stream = stream;
                _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
                _ = std::io::Write::write_all(
                    &mut stream,
                    b"HTTP/1.1 500 No\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno",
                );
            }
        });
        for port in [port, 1] {
            let address = format!("http://me:hunter22pw@127.0.0.1:{port}");
            let queue = queue("ray", json!({ "address": address, "token_env": "MCPRL_NO_SUCH" }));
            let Call::Http { is_post, url, headers, body } = submission(&queue) else { panic!() };
            let call = Call::Http { is_post, url: format!("{url}?sig=hunter22pw"), headers, body };
            let error = queue.send(call).await.unwrap_err();
            assert!(!error.contains("hunter22pw") && error.contains("127.0.0.1"), "{error}");
        }
        let paths = ["/a\nb/script", "/a\nb/log"].map(std::path::Path::new);
        let split = queue("slurm", json!({})).submission(&about("mcprl-a-1", "s", "run", paths));
        assert!(split.is_err());
        let paths = ["/a%j/script", "/a%j/log"].map(std::path::Path::new);
        let call = queue("slurm", json!({})).submission(&about("mcprl-a-1", "s", "run", paths)).unwrap();
        let Call::Run { arguments, .. } = call else { panic!() };
        assert!(arguments.contains(&"--output=/a%%j/log".to_owned()), "{arguments:?}");
    }

    /// A queue whose jobs are listed by this shell script.
    fn scripted(script: &str) -> Queue {
        let mut queue = queue("local", json!({}));
        let list = &mut queue.spec.template.list;
        list.run = Some(format!("sh\n-c\n{script}"));
        (list.lines, list.input) = ("{{ output }}".into(), "{{ env_var('PATH') }}".into());
        queue
    }

    #[tokio::test]
    async fn an_answer_without_end_is_an_error_that_names_the_command() {
        for script in ["yes", "yes >&2"] {
            let error = scripted(script).list().await.unwrap_err().to_string();
            assert!(error.contains("`sh`: its answer is longer than 64 MiB"), "{error}");
        }
    }

    #[tokio::test]
    async fn what_a_template_asks_for_of_the_environment_is_not_shown() {
        let path = std::env::var("PATH").unwrap();
        let error = scripted("cat >&2; exit 1").list().await.unwrap_err().to_string();
        assert!(error.ends_with("exit status: 1: …") && !error.contains(&path), "{error}");
        let jobs = scripted(r"printf 'mcprl-a ENDED '; cat | tr -d ' '").list().await.unwrap();
        assert_eq!(jobs["mcprl-a"], ended("ENDED, …"));
    }

    #[tokio::test]
    async fn a_redirect_is_not_followed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
            let answer = format!(
                "HTTP/1.1 307 Elsewhere\r\nlocation: http://localhost:{port}/b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            _ = std::io::Write::write_all(&mut stream, answer.as_bytes());
        });
        let url = format!("http://127.0.0.1:{port}/a");
        let call = Call::Http { is_post: false, url, headers: BTreeMap::new(), body: String::new() };
        let error = queue("ray", json!({})).send(call).await.unwrap_err();
        assert!(error.contains("307"), "{error}");
        server.join().unwrap();
    }

    #[test]
    fn a_word_of_a_shell_stays_one() {
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
