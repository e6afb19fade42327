//! Who answers: a policy of a run, on the run's servers with its section `[agent]`, or a model or adapter, perhaps on a server.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Map, Value};

use crate::{
    agent::AgentSettings,
    cli::{
        locations::Locations,
        policy_source,
        run_args::environment,
        server::ServerArgs,
        stage_context::{Notes, outside_a_run},
        target::Target,
    },
    data::{self, Tool},
    engine::EngineSpec,
    error::{At, Diagnostic, Result},
    exec::{
        folder,
        history::{self, ReadArtifact, RunHistory, StageHistory, Stages, Written},
    },
    hash::{Digest, Encoder},
    mcp::{Servers, State, Transport},
    plan::{Node, Overrides, Plan, RunFile, stage_settings},
    stage::{
        self, Artifacts, Card, Cards, Context, Input,
        card::ParamType,
        model::{KIND, gguf::is_gguf},
        policy::AdapterOf,
    },
    store::{FileDigests, Lease, Store},
    text::percent,
};

/// What is named on the command line.
pub struct Named<'a> {
    pub subject: &'a str,
    pub policy: Option<&'a str>,
    /// The server of a model, and its name in a file of several.
    pub server: &'a [String],
    pub server_name: Option<&'a str>,
    /// The model of an adapter.
    pub base: Option<&'a Path>,
    pub locations: &'a Locations,
}

/// What a policy, or a model behind an endpoint, plays with.
pub struct Setting {
    /// A table of tools; none without a server.
    pub tools: Option<PathBuf>,
    pub settings: AgentSettings,
    pub context: Context,
    pub notes: Arc<Notes>,
    /// What was made for this command alone.
    pub scratch: Scratch,
}

/// A folder for this command alone, beside the store's artifacts, where files may be cloned instead of copied. As long as it is there, no
/// sweep removes what the command uses.
pub struct Scratch {
    folder: tempfile::TempDir,
    _lease: Lease,
}

impl Scratch {
    /// `run`: whose results are used, or what stands for them.
    fn new(store: &Store, run: &str) -> Result<Self> {
        store.prepare()?;
        let lease = store.use_results(run)?;
        let folder = absolute(&store.root().join("tmp"));
        let folder = tempfile::Builder::new().prefix("chat-").tempdir_in(folder);
        Ok(Self { folder: folder.map_err(SubjectError::Scratch)?, _lease: lease })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A policy, and everything that it plays with.
pub struct Subject {
    pub policy: Input,
    /// All policies of the run, by the names that its comparison and its stages give them; otherwise this one.
    pub policies: Vec<Input>,
    /// The run, if it is one.
    pub run: Option<String>,
    pub about: About,
    pub setting: Setting,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "talk", class = usage)]
pub enum SubjectError {
    #[error("{model} is a model, and no server is named")]
    #[hint = "name it with `--server FILE`, a run file or a client's mcp.json, or put its command behind `--`"]
    NoServer { model: String },
    #[error("`{option}` applies only to {to}")]
    #[diagnostic(code = "option")]
    Stray { option: &'static str, to: &'static str },
    #[error("there is no file and no folder {}", path.display())]
    #[hint = "a model is a folder with config.json, or a file that ends in .gguf; a run is named by its id, as `mcprl runs` lists it"]
    NoPath { path: PathBuf },
    #[error("there is no run of {file}")]
    #[hint(format!("train it with `mcprl run {}`, or name a model and its server", file.display()))]
    NoRun { file: PathBuf },
    #[error("the run file of \"{run}\" cannot be read")]
    #[hint = "name the model and `--server` instead"]
    NoSpec { run: String },
    #[error("run \"{run}\" has no finished stage that plays episodes")]
    #[hint = "continue the run with `mcprl resume {run}`"]
    NoEpisodes { run: String },
    #[error("run \"{run}\" has no policy \"{name}\"")]
    #[hint("`mcprl show {run}` lists its stages" if known.is_empty())]
    #[hint(format!("it compares {}; a stage that writes a policy counts, too", known.join(", ")))]
    NoPolicy { run: String, name: String, known: Vec<String> },
    #[error("the model of the adapter {adapter} is not here")]
    #[hint = "name the folder of the model that it was trained on with `--base FOLDER`"]
    NoBase { adapter: PathBuf },
    #[error("[agent] of {file} has a value of another type")]
    #[hint = "docs/reference/stages.md lists its settings"]
    Agent { file: PathBuf },
    #[error("cannot make a temporary folder")]
    #[diagnostic(class = work)]
    Scratch(#[source] std::io::Error),
}

/// How episodes are played.
struct Play {
    card: Arc<Card>,
    params: Map<String, Value>,
    settings: AgentSettings,
    servers: Option<Servers>,
    engine: EngineSpec,
}

/// What a policy's agent is for.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// What its servers call themselves.
    pub title: String,
    /// Its success in the run's comparison of policies, on tasks that it was not trained on.
    pub success: Option<f64>,
    /// The tasks of that comparison, and its episodes.
    pub exam: Option<(PathBuf, PathBuf)>,
    /// The table of its results, and this policy's name there; none if it was not examined.
    pub verdict: Option<(PathBuf, String)>,
}

impl About {
    /// For those who choose among agents.
    pub fn description(&self, tools: &[Tool]) -> String {
        let names: Vec<&str> =
            tools.iter().filter(|tool| !tool.synthetic).map(|tool| tool.name.as_str()).collect();
        let of = if self.title.is_empty() { String::new() } else { format!(" of {}", self.title) };
        let success = self.success.map(|success| {
            format!(" It solved {} % of the tasks that it was examined on.", percent(success, 0))
        });
        format!(
            "An agent that finds out or does what a task asks for, with the {} tools{of}: {}.{}",
            names.len(),
            names.join(", "),
            success.unwrap_or_default(),
        )
    }
}

/// Of [`STAGES`]: the one that plays.
const PLAY: &str = "served-play";
/// What a run file without stages is planned with.
const LISTING: &str = "[stages.tools]\nkind = \"discover\"\n";

/// A model and a server without a run: its stages, with the defaults of their cards.
const STAGES: &str = "[stages.model]\nkind = \"model\"\n[stages.adapter]\nkind = \"adapter\"\n[stages.tools]\nkind = \"discover\"\n[stages.served-play]\nkind = \"rollout\"\n";

impl Named<'_> {
    /// # Errors
    /// If there is no such run, policy, model or server, or it cannot be used.
    pub async fn find(&self) -> Result<Subject> {
        let path = Path::new(self.subject);
        let is_model = path.join("config.json").is_file() && Target::at(path)?.is_none();
        let is_adapter = path.join("adapter_config.json").is_file() && Target::at(path)?.is_none();
        if is_model || is_adapter || is_gguf(path) && path.is_file() {
            return self.of_model(path, is_adapter).await;
        }
        let is_path = [".", "/", "~"].iter().any(|start| self.subject.starts_with(start)) || is_gguf(path);
        if is_path && path.symlink_metadata().is_err() {
            return Err(SubjectError::NoPath { path: path.to_owned() }.into());
        }
        if !self.server.is_empty() {
            return Err(SubjectError::Stray {
                option: "--server",
                to: "a model, because a run has its servers",
            }
            .into());
        }
        if path.extension().is_some_and(|extension| extension == "toml") && path.is_file() {
            let store = self.locations.store(Some(path))?;
            let same = |file: &Path| file.canonicalize().ok() == path.canonicalize().ok();
            let mut runs = folder::list(&store)?.into_iter().rev();
            let newest = runs.find(|run| history::spec(&store, run).is_some_and(|spec| same(&spec.file)));
            let run = newest.ok_or_else(|| SubjectError::NoRun { file: path.to_owned() })?;
            return self.of_run(store, &run, None);
        }
        let Target { store, run, part } = Target::new(self.locations, self.subject)?;
        self.of_run(store, &run, part.as_deref())
    }

    fn of_run(&self, store: Store, run: &str, part: Option<&str>) -> Result<Subject> {
        let run = history::run(&store, run)?;
        let stages = Stages::new(&store, &run);
        let finished: Vec<StageHistory> = run.nodes.iter().map(|node| stages.stage(node)).collect();
        let spec =
            history::spec(&store, &run.id).ok_or_else(|| SubjectError::NoSpec { run: run.id.clone() })?;
        let source = spec.source()?;
        let overrides = Overrides::new(environment(), spec.overrides.spelled());
        let plan = Plan::new(&source, &overrides, &Cards::new(spec.stages), &FileDigests::load(&store))?;
        let results = Results { store: &store, run: &run.id };
        let written = |stage: &StageHistory| writer_of(&finished, stage, "tools");
        let played = finished.iter().rev().find_map(|stage| {
            let node = nodes(&plan).find(|node| node.id == stage.node.id)?;
            Some((node, settings(&node.stage.params)?, written(stage)?))
        });
        let (node, settings, (lists, tools)) =
            played.ok_or_else(|| SubjectError::NoEpisodes { run: run.id.clone() })?;
        let (tools, servers) = (results.path(lists, tools)?, results.output(lists, "server")?);
        let play = Play {
            card: node.stage.card.clone(),
            params: node.stage.params.clone(),
            settings,
            servers: plan.servers.clone(),
            engine: plan.engine.clone(),
        };
        let (folder, label) = self.policy(&store, &run, part, &plan, &finished)?;
        let (examiner, compared) = compared(&plan, &finished).pop().unzip();
        let compared: Vec<ReadArtifact> = compared.unwrap_or_default();
        let last = compared.last().map(|read| read.digest);
        let reads = compared.clone();
        let compared =
            compared.iter().map(|read| (read.name.clone(), read.digest, store.artifact(&read.digest)));
        let written = finished.iter().flat_map(|stage| {
            let named = |written: &Written| (stage.node.id.clone(), written.digest, written.path.clone());
            stage.outputs.iter().map(named)
        });
        let mut policies: Vec<Input> = Vec::new();
        for (name, digest, path) in compared.chain(written) {
            if folder::is_policy(&path) && !policies.iter().any(|known| known.name == name) {
                history::check(&store, &run.id, &name, &digest)?;
                policies.push(Input { name, digest, path });
            }
        }
        let path = folder.canonicalize().unwrap_or(folder);
        let same = |known: &&Input| known.path.canonicalize().is_ok_and(|known| known == path);
        let digest = policies.iter().find(same).map(|known| known.digest);
        let policy = Input { name: label.clone(), digest: digest.unwrap_or_else(|| digest_of(&path)), path };
        let headline = run.headline.as_ref().filter(|_| last == Some(policy.digest));
        let examined = reads.into_iter().find(|read| read.digest == policy.digest).map(|read| read.name);
        let about = About {
            title: servers.as_deref().map(title).unwrap_or_default(),
            success: headline.map(|headline| headline.success),
            exam: match examiner.and_then(|stage| Some((stage, writer_of(&finished, stage, "scenarios")?))) {
                Some((stage, (writer, tasks))) => {
                    Some(results.path(writer, tasks)?).zip(results.output(stage, "episodes")?)
                }
                None => None,
            },
            verdict: match examiner {
                Some(stage) => results.output(stage, "verdict")?.zip(examined),
                None => None,
            },
        };
        let setting = setting(play, Some(&tools), &store, Scratch::new(&store, &run.id)?)?;
        Ok(Subject { policy, policies, run: Some(run.id), about, setting })
    }

    /// The folder of the policy, and its name.
    fn policy(
        &self,
        store: &Store,
        run: &RunHistory,
        part: Option<&str>,
        plan: &Plan,
        finished: &[StageHistory],
    ) -> Result<(PathBuf, String)> {
        let found = |part: Option<&str>| {
            let found = policy_source::of_run(store.clone(), &run.id, &run.id, part)?;
            let stage = found.of.map_or_else(String::new, |(_, stage)| format!("/{stage}"));
            Ok((found.folder, format!("{}{stage}", run.id)))
        };
        let Some(name) = self.policy else { return found(part) };
        let compared: Vec<ReadArtifact> =
            compared(plan, finished).into_iter().rev().flat_map(|(_, read)| read).collect();
        if let Some(input) = compared.iter().find(|input| input.name == name) {
            history::check(store, &run.id, input.from.as_deref().unwrap_or(name), &input.digest)?;
            return Ok((store.artifact(&input.digest), format!("{}/{name}", run.id)));
        }
        let known = compared.into_iter().map(|input| input.name).collect();
        match run.named(name) {
            Ok(_) => found(Some(name)),
            Err(_) => {
                Err(SubjectError::NoPolicy { run: run.id.clone(), name: name.to_owned(), known }.into())
            }
        }
    }

    /// What a model behind an endpoint plays with.
    ///
    /// # Errors
    /// If the server cannot be used.
    pub async fn without_policy(&self) -> Result<Setting> {
        let ServerSide { play, tools, store, scratch, .. } = self.server_side().await?;
        setting(play, tools.as_deref(), &store, scratch)
    }

    /// The server of a model, with the settings of the run file that names it, or else the defaults.
    async fn server_side(&self) -> Result<ServerSide> {
        if self.policy.is_some() {
            return Err(SubjectError::Stray { option: "--policy", to: "a run" }.into());
        }
        let run_file = self.server.first().map(Path::new).filter(|file| {
            self.server.len() == 1 && file.extension().is_some_and(|extension| extension == "toml")
        });
        let store = self.locations.store(run_file)?;
        let cards = self.locations.cards(run_file);
        let overrides = Overrides::new(environment(), Vec::new());
        let plan = match run_file {
            Some(file) => {
                let mut source = RunFile::read(file)?;
                // Its sections are enough.
                if stage_settings(&source, &overrides, &cards).is_empty() {
                    source = source.upon(LISTING)?;
                }
                Some(Plan::new(&source, &overrides, &cards, &FileDigests::load(&store))?)
            }
            None => None,
        };
        let servers = match &plan {
            Some(plan) => plan.servers.clone(),
            None if self.server.is_empty() => None,
            None => {
                let mut spec = ServerArgs::of(self.server, self.server_name).resolve()?.spec;
                // Nobody has said that conversations may share a session.
                if !matches!(spec.transport, Transport::Cassette(_)) {
                    spec.state = State::FreshProcess;
                }
                Some(spec.into())
            }
        };
        let engine = plan.as_ref().map(|plan| plan.engine.clone()).unwrap_or_default();
        let of_plan = |wanted: &dyn Fn(&Node) -> bool| {
            let node = plan.as_ref().and_then(|plan| nodes(plan).filter(|node| wanted(node)).last())?;
            Some((node.stage.card.clone(), node.stage.params.clone()))
        };
        let (card, params) = match of_plan(&|node| settings(&node.stage.params).is_some()) {
            Some(found) => found,
            None => default(&cards, run_file, &overrides, PLAY)?,
        };
        let (lists, mut list_params) = match of_plan(&|node| node.stage.card.outputs.contains_key("tools")) {
            Some(found) => found,
            None => {
                let (card, mut params) = default(&cards, None, &overrides, "tools")?;
                // A person is asked before each call of those.
                params.insert("destructive".into(), true.into());
                (card, params)
            }
        };
        list_params.remove("seed");
        let settings = settings(&params)
            .ok_or_else(|| SubjectError::Agent { file: run_file.unwrap_or(Path::new("")).to_owned() })?;
        let mut play = Play { card, params, settings, servers, engine };

        let scratch = Scratch::new(&store, "served")?;
        let mut servers_title = None;
        let tools = match play.servers {
            None => None,
            Some(_) => {
                let folder = scratch.path().join("tools");
                let listed = run(&play, (&lists, &list_params), &store, &folder, None).await;
                let listed = match listed {
                    // A server without sessions has none to share, and none to keep apart.
                    Err(failure) if plan.is_none() && failure.code() == "mcp::no_session" => {
                        let specs = play.servers.iter_mut().flat_map(Servers::iter_mut);
                        specs.for_each(|(_, spec)| spec.state = State::ReadOnly);
                        run(&play, (&lists, &list_params), &store, &folder, None).await?
                    }
                    listed => listed?,
                };
                let output = |kind: &str| listed.output(lists.output_of_type(kind).unwrap_or(kind), kind);
                servers_title = output("server").ok().map(|path| title(&path));
                Some(output("tools")?)
            }
        };
        Ok(ServerSide { play, tools, title: servers_title.unwrap_or_default(), cards, store, scratch })
    }

    async fn of_model(&self, path: &Path, is_adapter: bool) -> Result<Subject> {
        let ServerSide { play, tools, title, cards, store, scratch } = self.server_side().await?;
        let has_base_in_store = |folder: &Path| {
            let text = std::fs::read(folder.join(AdapterOf::FILE)).unwrap_or_default();
            serde_json::from_slice(&text).is_ok_and(|of: AdapterOf| store.inspect(&of.base).is_intact())
        };
        let import = async |name: &str, from: &Path, base: Option<&Input>| -> Result<Input> {
            let (card, mut params) = default(&cards, None, &Overrides::new([], Vec::new()), name)?;
            params.insert("from".into(), absolute(from).to_string_lossy().into());
            let folder = scratch.path().join(name);
            let imported = run(&play, (&card, &params), &store, &folder, base).await?;
            let path = imported.output(card.output_of_type("policy").unwrap_or("policy"), "policy")?;
            Ok(Input { name: self.subject.to_owned(), digest: digest_of(&path), path })
        };
        let (policy, base) = match is_adapter {
            false => (import(KIND, path, None).await?, None),
            true if self.base.is_none() && has_base_in_store(path) => {
                let path = absolute(path);
                (Input { name: self.subject.to_owned(), digest: digest_of(&path), path }, None)
            }
            true => {
                let named = self.base.map(Path::to_owned).or_else(|| base_of(path));
                let named = named.ok_or_else(|| SubjectError::NoBase { adapter: path.to_owned() })?;
                let base = import(KIND, &named, None).await?;
                (import("adapter", path, Some(&base)).await?, Some(base))
            }
        };
        let about = About { title, ..About::default() };
        let mut setting = setting(play, tools.as_deref(), &store, scratch)?;
        if let Some(base) = base {
            setting.context.artifacts = Arc::new(Imported(base));
        }
        Ok(Subject { policies: vec![policy.clone()], policy, run: None, about, setting })
    }
}

/// The server of a model, and how to play with it.
struct ServerSide {
    play: Play,
    /// None without a server.
    tools: Option<PathBuf>,
    title: String,
    cards: Cards,
    store: Store,
    scratch: Scratch,
}

/// The card of one of [`STAGES`], with its defaults, and with what the sections of a run file say in their place.
fn default(
    cards: &Cards,
    run_file: Option<&Path>,
    overrides: &Overrides,
    name: &str,
) -> Result<(Arc<Card>, Map<String, Value>)> {
    let sections = match run_file {
        Some(file) => RunFile::read(file)?,
        None => RunFile::parse(Path::new("chat.toml"), String::new())?,
    };
    let folder = sections.folder().to_owned();
    let stages = stage_settings(&sections.upon(STAGES)?, overrides, cards);
    let found = stages.into_iter().find(|stage| stage.name == name);
    let (kind, mut params) = found.map(|stage| (stage.kind, stage.params)).unwrap_or_default();
    let card = cards.get(&kind)?.ok_or(stage::StageError::NotBuiltIn { kind })?;
    for (name, value) in &mut params {
        if card.params.get(name).is_some_and(|param| param.kind == ParamType::File)
            && let Some(path) = value.as_str()
        {
            *value = absolute(&folder.join(path)).to_string_lossy().into();
        }
    }
    Ok((card, params))
}

/// The folder of an adapter's model, if `adapter_config.json` names one.
fn base_of(adapter: &Path) -> Option<PathBuf> {
    let config: Value =
        serde_json::from_slice(&std::fs::read(adapter.join("adapter_config.json")).ok()?).ok()?;
    let name = Path::new(config["base_model_name_or_path"].as_str()?);
    [adapter.join(name), name.to_owned()].into_iter().find(|folder| folder.join("config.json").is_file())
}

/// The model of an adapter, imported with it.
struct Imported(Input);

impl Artifacts for Imported {
    fn folder(&self, _: &Digest) -> Result<PathBuf> {
        Ok(self.0.path.clone())
    }
}

/// What the servers of this table call themselves.
fn title(table: &Path) -> String {
    let servers: Vec<data::Server> = data::read(table).unwrap_or_default();
    servers.into_iter().map(|server| server.name).collect::<Vec<_>>().join(", ")
}

/// What stands for the digest of a policy that is no artifact.
fn digest_of(path: &Path) -> Digest {
    Encoder::new("mcprl chat policy v1").text(&path.to_string_lossy()).finish()
}

/// The results of a run, each checked before it is used.
struct Results<'r> {
    store: &'r Store,
    run: &'r str,
}

impl Results<'_> {
    fn path(&self, stage: &StageHistory, written: &Written) -> Result<PathBuf> {
        let name = format!("{}.{}", stage.node.id, written.output);
        history::check(self.store, self.run, &name, &written.digest)?;
        Ok(written.path.clone())
    }

    /// The path of an output, if the stage has written it.
    fn output(&self, stage: &StageHistory, name: &str) -> Result<Option<PathBuf>> {
        let written = stage.outputs.iter().find(|written| written.output == name);
        written.map(|written| self.path(stage, written)).transpose()
    }
}

/// The stage that wrote what this one read in a role, and what it read.
fn writer_of<'f>(
    finished: &'f [StageHistory],
    stage: &StageHistory,
    role: &str,
) -> Option<(&'f StageHistory, &'f Written)> {
    let read = stage.inputs.iter().find(|input| input.role == role)?;
    finished.iter().find_map(|writer| {
        Some((writer, writer.outputs.iter().find(|written| written.digest == read.digest)?))
    })
}

/// The stages that compare policies, in their order, each with the policies that it read.
fn compared<'f>(plan: &Plan, finished: &'f [StageHistory]) -> Vec<(&'f StageHistory, Vec<ReadArtifact>)> {
    let of_stage = |stage: &'f StageHistory| {
        let node = nodes(plan).find(|node| node.id == stage.node.id)?;
        let is_compared = |role: &str| {
            node.stage.card.inputs.get(role).is_some_and(|role| role.many && role.artifact == "policy")
        };
        let read: Vec<ReadArtifact> =
            stage.inputs.iter().filter(|input| is_compared(&input.role)).cloned().collect();
        (!read.is_empty()).then_some((stage, read))
    };
    finished.iter().filter_map(of_stage).collect()
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn nodes(plan: &Plan) -> impl Iterator<Item = &Node> {
    plan.order().iter().map(|index| plan.node(*index))
}

/// The section `[agent]` of a stage that plays by all of it.
fn settings(params: &Map<String, Value>) -> Option<AgentSettings> {
    serde_json::from_value(params.clone().into()).ok()
}

/// Runs a stage that needs no inputs, or a base. Its context has its outputs.
async fn run(
    play: &Play,
    stage: (&Arc<Card>, &Map<String, Value>),
    store: &Store,
    folder: &Path,
    base: Option<&Input>,
) -> Result<Context> {
    let notes = Arc::new(Notes::default());
    let context = outside_a_run(stage, store, &play.engine, folder, &notes).map_err(SubjectError::Scratch)?;
    let inputs = base.map(|base| ("base".to_owned(), vec![base.clone()])).into_iter().collect();
    let context = Context { servers: play.servers.clone(), inputs, ..context };
    let (card, params) = stage;
    stage::parse(card, params)?.run(&context).await.at(|| card.kind.clone())?;
    Ok(context)
}

fn setting(play: Play, tools: Option<&Path>, store: &Store, scratch: Scratch) -> Result<Setting> {
    let Play { card, params, settings, mut servers, engine } = play;
    // A cassette has the calls of runs.
    servers.iter_mut().flat_map(Servers::iter_mut).for_each(|(_, spec)| spec.record = None);
    let notes = Arc::new(Notes::default());
    let context = outside_a_run((&card, &params), store, &engine, scratch.path(), &notes);
    let context = Context { servers, ..context.map_err(SubjectError::Scratch)? };
    Ok(Setting { tools: tools.map(absolute), settings, context, notes, scratch })
}
