//! Who answers: the policy of a run, on the run's servers with its section `[agent]`, or a model on a server.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Map, Value};

use super::error::TalkError;
use crate::{
    agent::AgentSettings,
    cli::{
        export,
        locations::Locations,
        run_args::environment,
        server::ServerArgs,
        stage_context::{Notes, outside_a_run},
        target::Target,
    },
    engine::EngineSpec,
    error::{At, Result},
    exec::{
        folder,
        history::{self, RunHistory, StageHistory, Stages, Written},
    },
    hash::Encoder,
    mcp::Servers,
    plan::{Node, Overrides, Plan, Source, stage_settings},
    stage::{
        self, Card, Cards, Context, Input,
        model::{KIND, gguf::is_gguf},
    },
    store::{FileDigests, Store},
};

/// What is named on the command line.
pub struct Named<'a> {
    pub subject: &'a str,
    pub policy: Option<&'a str>,
    /// The server of a model, and its name in a file of several.
    pub server: &'a [String],
    pub server_name: Option<&'a str>,
    pub locations: &'a Locations,
}

/// A policy, and everything that it plays with.
pub struct Subject {
    pub policy: Input,
    /// What the policy is called in traces.
    pub label: String,
    /// A table of tools.
    pub tools: PathBuf,
    pub settings: AgentSettings,
    pub context: Context,
    pub notes: Arc<Notes>,
    /// What was made for this chat alone.
    _scratch: tempfile::TempDir,
}

/// How episodes are played.
struct Play {
    card: Arc<Card>,
    params: Map<String, Value>,
    settings: AgentSettings,
    servers: Option<Servers>,
    engine: EngineSpec,
}

/// A model and a server without a run: its stages, with the defaults of their cards.
const STAGES: &str = "[stages.model]\nkind = \"model\"\n[stages.tools]\nkind = \"discover\"\n[stages.play]\nkind = \"rollout\"\n";

impl Named<'_> {
    /// # Errors
    /// If there is no such run, policy, model or server, or it cannot be used.
    pub async fn find(&self) -> Result<Subject> {
        let path = Path::new(self.subject);
        let is_model = path.join("config.json").is_file() && Target::at(path)?.is_none();
        if is_model || is_gguf(path) && path.is_file() {
            return self.of_model(path).await;
        }
        if !self.server.is_empty() {
            return Err(TalkError::Stray {
                option: "--server",
                to: "a model, because a run has its servers",
            }
            .into());
        }
        if path.extension().is_some_and(|extension| extension == "toml") && path.is_file() {
            let store = self.locations.store(Some(path))?;
            let same = |file: &Path| file.canonicalize().ok() == path.canonicalize().ok();
            let mut runs = folder::list(&store).into_iter().rev();
            let newest = runs.find(|run| history::spec(&store, run).is_some_and(|spec| same(&spec.file)));
            let run = newest.ok_or_else(|| TalkError::NoRun { file: path.to_owned() })?;
            return self.of_run(store, &run, None);
        }
        let Target { store, run, part } = Target::new(self.locations, self.subject)?;
        self.of_run(store, &run, part.as_deref())
    }

    fn of_run(&self, store: Store, run: &str, part: Option<&str>) -> Result<Subject> {
        let run = history::run(&store, run)?;
        let stages = Stages::new(&store, &run);
        let finished: Vec<StageHistory> = run.nodes.iter().map(|node| stages.stage(node)).collect();
        let spec = history::spec(&store, &run.id).ok_or_else(|| TalkError::NoSpec { run: run.id.clone() })?;
        let source = Source::parse(&spec.file, spec.text)?;
        let overrides = Overrides::new(environment(), spec.overrides.spelled());
        let plan = Plan::new(&source, &overrides, &Cards::new(spec.stages), &FileDigests::load(&store))?;
        let written = |stage: &StageHistory| {
            let read = stage.inputs.iter().find(|input| input.role == "tools")?;
            let all = finished.iter().flat_map(|stage| &stage.outputs);
            let table = |written: &&Written| written.digest == read.digest;
            all.into_iter().find(table).map(|written| written.path.clone())
        };
        let played = finished.iter().rev().find_map(|stage| {
            let node = nodes(&plan).find(|node| node.id == stage.node.id)?;
            Some((node, settings(&node.stage.params)?, written(stage)?))
        });
        let (node, settings, tools) = played.ok_or_else(|| TalkError::NoEpisodes { run: run.id.clone() })?;
        let play = Play {
            card: node.stage.card.clone(),
            params: node.stage.params.clone(),
            settings,
            servers: plan.servers.clone(),
            engine: plan.engine.clone(),
        };
        let (policy, label) = self.policy(&store, &run, part, &plan, &finished)?;
        subject((policy, label), tools, play, &store, scratch(&store)?)
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
            let found = export::of_run(store.clone(), &run.id, &run.id, part)?;
            let stage = found.of.map_or_else(String::new, |(_, stage)| format!("/{stage}"));
            Ok((found.folder, format!("{}{stage}", run.id)))
        };
        let Some(name) = self.policy else { return found(part) };
        let mut known = Vec::new();
        for stage in finished.iter().rev() {
            let Some(node) = nodes(plan).find(|node| node.id == stage.node.id) else { continue };
            let is_compared = |role: &str| {
                node.stage.card.inputs.get(role).is_some_and(|role| role.many && role.artifact == "policy")
            };
            for input in stage.inputs.iter().filter(|input| is_compared(&input.role)) {
                if input.name == name {
                    return Ok((store.artifact(&input.digest), format!("{}/{name}", run.id)));
                }
                known.push(input.name.clone());
            }
        }
        match run.named(name) {
            Ok(_) => found(Some(name)),
            Err(_) => Err(TalkError::NoPolicy { run: run.id.clone(), name: name.to_owned(), known }.into()),
        }
    }

    async fn of_model(&self, path: &Path) -> Result<Subject> {
        if self.policy.is_some() {
            return Err(TalkError::Stray { option: "--policy", to: "a run" }.into());
        }
        if self.server.is_empty() {
            return Err(TalkError::NoServer { model: self.subject.to_owned() }.into());
        }
        let run_file = self.server.first().map(Path::new).filter(|file| {
            self.server.len() == 1 && file.extension().is_some_and(|extension| extension == "toml")
        });
        let store = self.locations.store(run_file)?;
        let cards = self.locations.cards(run_file);
        let defaults = Source::parse(Path::new("chat.toml"), STAGES.to_owned())?;
        let stages = stage_settings(&defaults, &Overrides::new([], Vec::new()), &cards);
        let default = |name: &str| -> Result<(Arc<Card>, Map<String, Value>)> {
            let found = stages.iter().find(|stage| stage.name == name);
            let (kind, params) =
                found.map(|stage| (stage.kind.clone(), stage.params.clone())).unwrap_or_default();
            let card = cards.get(&kind)?.ok_or(stage::StageError::NotBuiltIn { kind })?;
            Ok((card, params))
        };
        let plan = match run_file {
            Some(file) => {
                let overrides = Overrides::new(environment(), Vec::new());
                Some(Plan::new(&Source::read(file)?, &overrides, &cards, &FileDigests::load(&store))?)
            }
            None => None,
        };
        let servers = match &plan {
            Some(plan) => plan.servers.clone(),
            None => Some(ServerArgs::of(self.server, self.server_name).resolve(false)?.spec.into()),
        };
        let engine = plan.as_ref().map(|plan| plan.engine.clone()).unwrap_or_default();
        let of_plan = |wanted: &dyn Fn(&Node) -> bool| {
            let node = plan.as_ref().and_then(|plan| nodes(plan).filter(|node| wanted(node)).last())?;
            Some((node.stage.card.clone(), node.stage.params.clone()))
        };
        let (card, params) = match of_plan(&|node| settings(&node.stage.params).is_some()) {
            Some(found) => found,
            None => default("play")?,
        };
        let (lists, mut list_params) = match of_plan(&|node| node.stage.card.outputs.contains_key("tools")) {
            Some(found) => found,
            None => {
                let (card, mut params) = default("tools")?;
                // A person is asked before each call of those.
                params.insert("destructive".into(), true.into());
                (card, params)
            }
        };
        list_params.remove("seed");
        let settings =
            settings(&params).ok_or_else(|| TalkError::NoEpisodes { run: self.subject.to_owned() })?;
        let play = Play { card, params, settings, servers, engine };

        let scratch = scratch(&store)?;
        let listed = run(&play, (&lists, &list_params), &store, &scratch.path().join("tools")).await?;
        let tools = listed.output(lists.output_of_type("tools").unwrap_or("tools"), "tools")?;
        let (imports, mut params) = default(KIND)?;
        params.insert("from".into(), absolute(path).to_string_lossy().into());
        let imported = run(&play, (&imports, &params), &store, &scratch.path().join("model")).await?;
        let policy = imported.output(imports.output_of_type("policy").unwrap_or("policy"), "policy")?;
        subject((policy, self.subject.to_owned()), tools, play, &store, scratch)
    }
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

/// A folder next to the store's artifacts, where files may be cloned instead of copied.
fn scratch(store: &Store) -> Result<tempfile::TempDir> {
    let folder = absolute(&store.root().join("tmp"));
    std::fs::create_dir_all(&folder).map_err(TalkError::Scratch)?;
    Ok(tempfile::Builder::new().prefix("chat-").tempdir_in(folder).map_err(TalkError::Scratch)?)
}

/// Runs a stage that needs no inputs. Its context has its outputs.
async fn run(
    play: &Play,
    stage: (&Arc<Card>, &Map<String, Value>),
    store: &Store,
    folder: &Path,
) -> Result<Context> {
    let notes = Arc::new(Notes::default());
    let context = outside_a_run(stage, store, &play.engine, folder, &notes).map_err(TalkError::Scratch)?;
    let context = Context { servers: play.servers.clone(), ..context };
    let (card, params) = stage;
    stage::parse(card, params)?.run(&context).await.at(|| card.kind.clone())?;
    Ok(context)
}

fn subject(
    (policy, label): (PathBuf, String),
    tools: PathBuf,
    play: Play,
    store: &Store,
    scratch: tempfile::TempDir,
) -> Result<Subject> {
    let Play { card, params, settings, mut servers, engine } = play;
    // A cassette has the calls of runs.
    servers.iter_mut().flat_map(Servers::iter_mut).for_each(|(_, spec)| spec.record = None);
    let notes = Arc::new(Notes::default());
    let context = outside_a_run((&card, &params), store, &engine, scratch.path(), &notes);
    let context = Context { servers, ..context.map_err(TalkError::Scratch)? };
    let path = policy.canonicalize().unwrap_or(policy);
    let digest = Encoder::new("mcprl chat policy v1").text(&path.to_string_lossy()).finish();
    let policy = Input { name: label.clone(), digest, path };
    Ok(Subject { policy, label, tools: absolute(&tools), settings, context, notes, _scratch: scratch })
}
