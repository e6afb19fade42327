//! The run file with every value typed and every default filled in; references between stages are still text.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use schemars::JsonSchema;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value};

use super::{
    engine,
    executor::{self, Executor, JobsSpec},
    layers::{AGENT, BASE, Entry, EntryPart, Layers, MODEL, Origin, top_level},
    reader::Reader,
    section::schema_of,
    server,
    track::{self, TrackSpec},
    upkeep::{self, CacheMode},
};
use crate::{
    engine::EngineSpec,
    error::{Result, suggest},
    hash::Digest,
    json::json_type,
    mcp::{ServerSpec, Servers},
    secret,
    stage::{
        self, Card, Cards, StageKind,
        card::{ParamType, RESERVED, Section, agent_params},
        model,
    },
    store::{FileDigests, RemoteSpec},
    usage::Prices,
};

/// A run file before its references are resolved.
pub struct ParsedRun<'a> {
    pub name: String,
    pub servers: Option<Servers>,
    pub engine: EngineSpec,
    pub remote: Option<RemoteSpec>,
    pub executors: BTreeMap<String, JobsSpec>,
    pub track: TrackSpec,
    /// In file order.
    pub stages: Vec<ParsedStage<'a>>,
    pub loops: Vec<ParsedLoop<'a>>,
    /// Names of stages and loops that are in the file but could not be parsed.
    pub broken: BTreeSet<String>,
    /// Whether there are no mistakes so far. Only then does a missing name mean that the file lacks it.
    pub is_whole: bool,
}

/// Longest file of values, in bytes: a key holds them.
const MOST_VALUES: u64 = 64 << 10;

const MOST_ITERATIONS: u32 = 9999;

/// A stage's values.
pub struct Stage {
    /// As the run file names it, with the loop's name if it is in one: `tasks`, `train/rollout`.
    pub name: String,
    pub card: Arc<Card>,
    /// Sections of the run file that it receives.
    pub uses: Vec<Section>,
    pub params: Map<String, Value>,
    /// What the stage does. None if the parameters do not parse; preflight checks report why.
    pub kind: Option<Box<dyn StageKind>>,
    /// Digests of the parameters of type `file`, by parameter, and of files within others, as `harness/1`.
    pub files: BTreeMap<String, Digest>,
    pub seed: u64,
    pub cache: CacheMode,
    pub executor: Executor,
    /// Jobs that play its episodes.
    pub shards: usize,
    /// Judge token prices: the run file's, or the card's.
    pub prices: Option<Prices>,
    /// Dotted path of its table in the run file.
    pub path: String,
}

impl Stage {
    /// The type of the parameter of a file in [`files`](Self::files).
    pub fn param_type(&self, name: &str) -> ParamType {
        let param = name.split_once('/').map_or(name, |(param, _)| param);
        self.card.params.get(param).map_or(ParamType::File, |param| param.kind)
    }

    /// Whether the artifacts of a role are of this type.
    pub fn reads(&self, role: &str, artifact: &str) -> bool {
        self.card.inputs.get(role).is_some_and(|role| role.artifact == artifact)
    }

    /// The path of a file in [`files`](Self::files).
    pub fn file(&self, name: &str) -> PathBuf {
        let (param, word) = name.split_once('/').unzip();
        let value = self.params.get(param.unwrap_or(name));
        let value =
            value.and_then(|value| word.map_or(Some(value), |word| value.pointer(&format!("/{word}"))));
        value.and_then(Value::as_str).unwrap_or_default().into()
    }
}

pub struct ParsedStage<'a> {
    pub name: String,
    pub stage: Arc<Stage>,
    pub inputs: Vec<ParsedInput<'a>>,
    /// The carried value that an output of this stage renews.
    pub yields: Option<Entry<'a>>,
    pub entry: Entry<'a>,
}

/// An artifact that a stage reads.
pub struct ParsedInput<'a> {
    pub role: String,
    /// The role, or the artifact's name if the role takes several.
    pub name: String,
    pub artifact: String,
    pub entry: Entry<'a>,
}

pub struct ParsedLoop<'a> {
    pub name: String,
    pub iterations: u32,
    pub carry: BTreeMap<&'a str, Entry<'a>>,
    pub until: Option<(Until, Entry<'a>)>,
    /// As [`Loop::_begins`].
    pub begins: Option<(Until, Entry<'a>)>,
    pub best: Option<(Best, Entry<'a>)>,
    /// As [`Loop::patience`].
    pub patience: u32,
    pub stages: Vec<ParsedStage<'a>>,
    pub entry: Entry<'a>,
}

/// Stages that run several times. Each iteration starts from the carried values of the previous one.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Loop {
    /// How often the stages run. 0: the result is what the loop starts from.
    #[schemars(range(min = 0, max = MOST_ITERATIONS))]
    iterations: u32,
    /// Consecutive iterations in which no group is informative, so that nothing can be learned, after which the loop ends. 0
    /// for never. It reads the metric `signal`.
    #[serde(default = "default_patience")]
    patience: u32,
    /// Carried values: each name with the artifact that it starts from. Stages read it as `@name`.
    #[serde(rename = "carry", default)]
    #[schemars(with = "Option<BTreeMap<String, String>>")]
    _carry: IgnoredAny,
    #[serde(rename = "until", default)]
    #[schemars(with = "Option<Until>")]
    _until: IgnoredAny,
    /// The loop runs if a metric of a stage outside it passes a bound; otherwise its result is what it starts from.
    #[serde(rename = "if", default)]
    #[schemars(with = "Option<Until>")]
    _begins: IgnoredAny,
    #[serde(rename = "best", default)]
    #[schemars(with = "Option<Best>")]
    _best: IgnoredAny,
    #[serde(rename = "stages")]
    #[schemars(with = "Value")]
    _stages: IgnoredAny,
}

fn default_patience() -> u32 {
    2
}

fn default_best_patience() -> u32 {
    3
}

fn every() -> u32 {
    1
}

/// The loop's result is the iteration that measures best, or what it starts from, instead of the last.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// `stage.metric`, of a stage of this loop that measures what the iteration made. More is better.
    pub metric: String,
    /// `stage.metric`, of a stage outside loops that measures in the same way what the loop starts from.
    pub start: String,
    /// The measuring stage runs in every so many iterations, and in the last.
    #[serde(default = "every")]
    #[schemars(range(min = 1))]
    pub every: u32,
    /// Measurements without a new best that end the loop. 0 for never.
    #[serde(default = "default_best_patience")]
    pub patience: u32,
}

/// A bound of a metric.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Until {
    /// `stage.metric`: of a stage of this loop, or for `if` of one outside loops.
    pub metric: String,
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
}

/// The cards of the kinds that the stages name. Unknown kinds are noted later.
pub fn kinds(layers: &Layers, cards: &Cards) -> Result<BTreeMap<String, Arc<Card>>> {
    let names: BTreeSet<&str> = layers.stages().filter_map(|stage| stage.kind()).collect();
    let card = |name: &str| Ok(cards.get(name)?.map(|card| (name.to_owned(), card)));
    names.into_iter().filter_map(|name| card(name).transpose()).collect()
}

/// Parses the merged run file. Notes mistakes; returns what can be parsed despite them.
pub fn parse<'a>(
    reader: &Reader,
    layers: &'a Layers,
    kinds: &BTreeMap<String, Arc<Card>>,
    cards: &Cards,
    files: &FileDigests,
) -> Option<ParsedRun<'a>> {
    let top = layers.top();
    let has_model = top.field(MODEL).is_some();
    let parser = RunFileParser {
        reader,
        layers,
        kinds,
        cards,
        files,
        seed: 0,
        executor: Executor::default(),
        executors: BTreeMap::new(),
        has_model,
        broken: RefCell::default(),
    };
    parser.parse(&top)
}

/// The parameter of a stage that lists tools which takes `[overrides.tools]`.
fn override_param(card: &Card) -> Option<&'static str> {
    const NAME: &str = "overrides";
    let is_table = card.params.get(NAME).is_some_and(|param| param.kind == ParamType::Table);
    (is_table && card.output_of_type("tools").is_some()).then_some(NAME)
}

/// A file or folder that a parameter names: where in its value, as a JSON pointer, with path and digest.
type FoundFile = (String, (PathBuf, Digest));

/// A stage's table in the run file.
struct Table<'t, 'a> {
    name: &'t str,
    entry: &'t Entry<'a>,
    fields: &'t BTreeMap<&'a str, Entry<'a>>,
    /// Known keys that misspelt ones probably meant.
    meant: Vec<&'t str>,
}

struct RunFileParser<'r, 'a> {
    reader: &'r Reader,
    layers: &'a Layers,
    kinds: &'r BTreeMap<String, Arc<Card>>,
    cards: &'r Cards,
    files: &'r FileDigests,
    seed: u64,
    executor: Executor,
    executors: BTreeMap<String, Option<JobsSpec>>,
    /// Whether the run file has `model` at the top.
    has_model: bool,
    broken: RefCell<BTreeSet<String>>,
}

impl<'a> RunFileParser<'_, 'a> {
    fn parse(mut self, top: &Entry<'a>) -> Option<ParsedRun<'a>> {
        self.only(top, &top_level());
        let sections = self.reader.table(top)?;
        let name = match sections.get("name") {
            Some(entry) => {
                let name = self.reader.text(entry).unwrap_or("run");
                self.check_name(entry, name, EntryPart::Value);
                name.to_owned()
            }
            None => self.layers.source().path().file_stem().map_or("run".into(), |stem| {
                stem.to_string_lossy().replace(|letter: char| !letter.is_ascii_alphanumeric(), "-")
            }),
        };
        self.seed = sections.get("seed").and_then(|seed| self.reader.read(seed)).unwrap_or_default();
        let executors = sections.get("executors").map(|entry| executor::executors(self.reader, entry));
        self.executors = executors.unwrap_or_default();
        self.executor = sections
            .get("executor")
            .and_then(|entry| executor::executor(self.reader, entry, &self.executors))
            .unwrap_or_default();
        let servers = match (sections.get("server"), sections.get("servers")) {
            (Some(entry), None) => {
                if let Some(seeds) = entry.field("seeds") {
                    let message = "`seeds` makes several servers, which [server] is not".to_owned();
                    let hint = "write [servers.NAME] in place of [server]".to_owned();
                    self.reader.wrong::<()>(&seeds, EntryPart::Key, message, Some(hint));
                }
                Some(server::server(self.reader, entry).map(Servers::from))
            }
            (None, Some(entry)) => Some(self.servers(entry)),
            (Some(_), Some(entry)) => {
                let message = "a run file has [server] or [servers.NAME], not both";
                Some(self.reader.wrong(entry, EntryPart::Key, message, None))
            }
            (None, None) => None,
        };
        let engine = sections.get("engine").and_then(|entry| engine::engine(self.reader, entry));
        let remote = sections.get("cache").and_then(|entry| upkeep::remote(self.reader, entry));
        let track = sections.get("track").map(|entry| track::track(self.reader, entry));
        if let Some(entry) = sections.get(AGENT) {
            self.reader.only(entry, &agent_params().keys().map(String::as_str).collect::<Vec<_>>());
        }
        if let Some(entry) = sections.get("overrides") {
            self.overrides(entry);
        }
        let stages = sections.get("stages").map_or(Vec::new(), |entry| self.stages(entry, ""));
        let loops = sections.get("loop").map_or(Vec::new(), |entry| self.loops(entry));

        let inner = || loops.iter().flat_map(|parsed_loop| &parsed_loop.stages);
        let outer = stages.iter().map(|stage| (stage.name.as_str(), &stage.entry));
        let mut names = BTreeSet::new();
        for (name, entry) in outer.chain(loops.iter().map(|each| (each.name.as_str(), &each.entry))) {
            if !names.insert(name) {
                self.twice(name, entry);
            }
        }
        for stage in inner().filter(|stage| names.contains(stage.name.as_str())) {
            self.twice(&stage.name, &stage.entry);
        }
        if stages.is_empty() && loops.is_empty() && self.reader.clean() {
            return self.reader.wrong(top, EntryPart::Key, "the run file has no stages", None);
        }
        let mut users =
            stages.iter().chain(inner()).filter(|stage| stage.stage.uses.contains(&Section::Server));
        if servers.is_none()
            && let Some(stage) = users.next()
        {
            let others = match users.count() {
                0 => String::new(),
                1 => " (and so does another one)".to_owned(),
                more => format!(" (and so do {more} others)"),
            };
            let message =
                format!("stage \"{}\" needs a server{others}, but the run file has no [server]", stage.name);
            let hint =
                "add one: [server] with command = [\"./your-server\", \"--stdio\"], or with a url".to_owned();
            self.reader.wrong::<()>(&stage.entry, EntryPart::Key, message, Some(hint));
        }
        let (broken, is_whole) = (self.broken.take(), self.reader.clean());
        let (servers, engine) = (servers.flatten(), engine.unwrap_or_default());
        let track = track.unwrap_or_default();
        let executors = self.executors.into_iter().filter_map(|(name, spec)| Some((name, spec?))).collect();
        Some(ParsedRun { name, servers, engine, remote, executors, track, stages, loops, broken, is_whole })
    }

    /// Checks `[overrides]`; the stages that list tools take their part of it as a parameter.
    fn overrides(&self, entry: &Entry<'a>) {
        self.reader.only(entry, &["tools"]);
        let takes = |card: &Arc<Card>| override_param(card).is_some();
        if !self.kinds.values().any(takes) {
            let message = "no stage takes [overrides]".to_owned();
            let hint = "they are for stages that list a server's tools, such as `discover`".to_owned();
            self.reader.wrong::<()>(entry, EntryPart::Key, message, Some(hint));
        }
        for (_, tool) in entry.field("tools").iter().flat_map(|tools| self.ordered(tools)) {
            self.reader.only(&tool, &["description", "parameters"]);
            if let Some(text) = tool.field("description") {
                self.reader.text(&text);
            }
            for (_, text) in tool.field("parameters").iter().flat_map(|table| self.ordered(table)) {
                self.reader.text(&text);
            }
        }
    }

    fn servers(&self, entry: &Entry<'a>) -> Option<Servers> {
        let mut by_name: BTreeMap<String, Option<ServerSpec>> = BTreeMap::new();
        for (name, entry) in self.ordered(entry) {
            self.check_name(&entry, name, EntryPart::Key);
            let spec = server::server(self.reader, &entry);
            let Some(names) = server::names(self.reader, name, &entry) else {
                by_name.insert(name.to_owned(), None);
                continue;
            };
            for (name, seed) in names {
                let ambiguous = |other: &&String| {
                    **other == name
                        || name.starts_with(&format!("{other}_"))
                        || other.starts_with(&format!("{name}_"))
                };
                if let Some(other) = by_name.keys().find(ambiguous) {
                    let message = if *other == name {
                        format!("two servers are named \"{name}\"")
                    } else {
                        format!(
                            "the names of the servers \"{other}\" and \"{name}\" give tools of both the same prefix"
                        )
                    };
                    self.reader.wrong::<()>(
                        &entry,
                        EntryPart::Key,
                        message,
                        Some("rename one of them".into()),
                    );
                }
                let spec = match (&spec, seed) {
                    (Some(spec), Some(seed)) => Some(server::of_seed(spec, seed)),
                    (spec, _) => spec.clone(),
                };
                by_name.insert(name, spec);
            }
        }
        if by_name.is_empty() {
            let message = "[servers] is empty".to_owned();
            let hint = "add [servers.NAME] with a `command` or a `url`".to_owned();
            return self.reader.wrong(entry, EntryPart::Key, message, Some(hint));
        }
        self.check_cassettes(entry, &by_name);
        let by_name: Option<BTreeMap<_, _>> =
            by_name.into_iter().map(|(name, spec)| Some((name, spec?))).collect();
        by_name.map(Servers::named)
    }

    /// Notes servers that record to the same cassette.
    fn check_cassettes(&self, entry: &Entry<'_>, servers: &BTreeMap<String, Option<ServerSpec>>) {
        let mut seen: BTreeMap<PathBuf, &str> = BTreeMap::new();
        for (name, spec) in servers {
            let Some(path) = spec.as_ref().and_then(|spec| spec.record.as_ref()) else { continue };
            let Some(other) = seen.insert(server::normal(path), name) else { continue };
            let own = entry.field(name).and_then(|server| server.field("record"));
            let message = format!("the servers \"{other}\" and \"{name}\" record to the same cassette");
            let place = own.as_ref().unwrap_or(entry);
            self.reader.wrong::<()>(place, EntryPart::Value, message, Some("give each its own".into()));
        }
    }

    /// Notes unknown keys of a table that holds stages. Their contents may be stages.
    fn only(&self, table: &Entry<'_>, known: &[&str]) {
        let unknown = table.fields().into_iter().flatten().filter(|(name, _)| !known.contains(name));
        let within = unknown.filter_map(|(_, entry)| entry.fields()).flat_map(BTreeMap::into_keys);
        self.broken.borrow_mut().extend(within.map(str::to_owned));
        self.reader.only(table, known);
    }

    fn twice(&self, name: &str, entry: &Entry<'_>) {
        let message = format!("two stages or loops are named \"{name}\"");
        let hint = match self.has_model && name == BASE {
            true => format!("`{MODEL}` makes a stage named \"{name}\"; rename this one"),
            false => "stages and loops share one namespace".to_owned(),
        };
        self.reader.wrong::<()>(entry, EntryPart::Key, message, Some(hint));
    }

    fn check_name(&self, entry: &Entry<'_>, name: &str, part: EntryPart) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || !name.bytes().all(plain) {
            let message = format!("\"{name}\" should be a name of letters, digits, `_` and `-`");
            self.reader.wrong::<()>(entry, part, message, None);
        }
    }

    /// Entries of a table, in file order.
    fn ordered(&self, table: &Entry<'a>) -> Vec<(&'a str, Entry<'a>)> {
        let mut entries: Vec<_> = self.reader.table(table).into_iter().flatten().collect();
        entries.sort_by_cached_key(|(_, entry)| entry.order());
        entries
    }

    fn stages(&self, table: &Entry<'a>, within: &str) -> Vec<ParsedStage<'a>> {
        let all = self.ordered(table);
        let stage = |(name, entry): &(&'a str, Entry<'a>)| {
            self.check_name(entry, name, EntryPart::Key);
            if within.is_empty() && self.has_model && *name == BASE && entry.path != MODEL {
                let message =
                    format!("`{MODEL}` makes a stage named \"{BASE}\", and the run file has another one");
                let hint = "remove one of them, or rename this stage".to_owned();
                self.reader.wrong::<()>(entry, EntryPart::Key, message, Some(hint));
            }
            if matches!(entry.origin(), Origin::Override(_)) && entry.kind().is_none() {
                let others = all.iter().filter(|(_, entry)| entry.kind().is_some());
                return self.not_there("stage", name, entry, others.map(|(name, _)| *name));
            }
            let stage = self.stage(name, entry, within);
            self.broken.borrow_mut().extend(stage.is_none().then(|| (*name).to_owned()));
            stage
        };
        all.iter().filter_map(stage).collect()
    }

    /// Notes an override of a stage or loop that the run file lacks.
    fn not_there<'n, T>(
        &self,
        what: &str,
        name: &str,
        entry: &Entry<'_>,
        others: impl Iterator<Item = &'n str> + Clone,
    ) -> Option<T> {
        let hint = suggest(name, others.clone()).or_else(|| {
            let others: Vec<&str> = others.collect();
            (!others.is_empty()).then(|| format!("{what}s: {}", others.join(", ")))
        });
        let message = format!("the run file has no {what} \"{name}\"");
        self.reader.wrong(entry, EntryPart::Key, message, hint)
    }

    fn stage(&self, name: &str, entry: &Entry<'a>, within: &str) -> Option<ParsedStage<'a>> {
        let fields = self.reader.table(entry)?;
        let Some(kind_entry) = fields.get("kind") else {
            let message = format!("stage \"{name}\" has no `kind`");
            let hint = format!("kinds: {}", self.cards.kinds().join(", "));
            return self.reader.wrong(entry, EntryPart::Key, message, Some(hint));
        };
        let kind = self.reader.text(kind_entry)?;
        let Some(card) = self.kinds.get(kind) else {
            let kinds = self.cards.kinds();
            let hint = suggest(kind, kinds.iter().map(String::as_str));
            let hint = hint.unwrap_or_else(|| format!("kinds: {}", kinds.join(", ")));
            let message = format!("unknown stage kind \"{kind}\"");
            return self.reader.wrong(kind_entry, EntryPart::Value, message, Some(hint));
        };
        let known: Vec<&str> = RESERVED
            .into_iter()
            .chain(card.inputs.keys().map(String::as_str))
            .chain(card.params.keys().map(String::as_str))
            .collect();
        let meant = self.reader.only(entry, &known);
        let table = Table { name, entry, fields: &fields, meant };

        let (params, files) = self.params(card, &table);
        let seed = fields.get("seed").and_then(|seed| self.reader.read(seed));
        let cache = fields.get("cache").and_then(|cache| upkeep::cache_mode(self.reader, cache));
        let executor = fields.get("executor");
        let executor = executor.and_then(|entry| executor::executor(self.reader, entry, &self.executors));
        let executor = executor.unwrap_or_else(|| self.executor.clone());
        let prices = fields.get("prices").and_then(|prices| self.reader.read(prices));
        let kind = stage::parse(card, &params).ok();
        let stage = Stage {
            name: if within.is_empty() { name.to_owned() } else { format!("{within}/{name}") },
            card: card.clone(),
            uses: card.sections(|role| fields.contains_key(role)),
            params,
            files,
            seed: seed.unwrap_or(self.seed),
            cache: cache.unwrap_or_default(),
            shards: self.shards(&fields, kind.as_deref(), &executor),
            kind,
            executor,
            prices: prices.or(card.prices),
            path: entry.path.clone(),
        };
        let yields = fields.get("yields").filter(|yields| self.reader.text(yields).is_some());
        if let Some(yields) = yields.filter(|_| within.is_empty()) {
            self.reader.wrong::<()>(yields, EntryPart::Key, "`yields` is only allowed in a loop", None);
        }
        Some(ParsedStage {
            name: name.to_owned(),
            inputs: self.inputs(card, &table),
            yields: yields.cloned(),
            stage: Arc::new(stage),
            entry: entry.clone(),
        })
    }

    /// Into how many jobs a stage's episodes are divided.
    fn shards(
        &self,
        fields: &BTreeMap<&str, Entry<'a>>,
        kind: Option<&dyn StageKind>,
        executor: &Executor,
    ) -> usize {
        let Some(entry) = fields.get("shards") else { return 1 };
        let message = match (entry.json().as_u64().filter(|count| *count > 0), executor) {
            (Some(1), _) => return 1,
            (Some(_), _) if kind.is_some_and(|kind| !kind.has_shards()) => {
                format!("`{}`: a stage of this kind plays no episodes to divide", entry.path)
            }
            (Some(count), Executor::Jobs(_)) => return usize::try_from(count).unwrap_or(usize::MAX),
            (Some(_), _) => format!("`{}` needs an `executor` of [executors]", entry.path),
            (None, _) => format!("`{}` should be an integer from 1", entry.path),
        };
        self.reader.wrong::<()>(entry, EntryPart::Value, message, None);
        1
    }

    /// The value of a parameter where the user wrote it: of the stage, or of `[agent]`.
    fn given(&self, card: &Card, entry: &Entry<'a>, param: &str) -> Entry<'a> {
        let is_default = matches!(entry.origin(), Origin::Card) && card.agent.contains_key(param);
        let of_agent = || self.layers.top().field(AGENT)?.field(param);
        is_default.then(of_agent).flatten().unwrap_or_else(|| entry.clone())
    }

    fn params(&self, card: &Card, stage: &Table<'_, 'a>) -> (Map<String, Value>, BTreeMap<String, Digest>) {
        let (mut params, mut files) = (Map::new(), BTreeMap::new());
        for (param_name, param) in &card.params {
            let needed = card.agent.get(param_name).filter(|roles| !roles.is_empty());
            if needed.is_some_and(|roles| !roles.iter().any(|role| stage.fields.contains_key(&**role))) {
                continue;
            }
            let Some(entry) =
                stage.fields.get(param_name.as_str()).map(|entry| self.given(card, entry, param_name))
            else {
                if !param.optional {
                    let hint = (!param.about.is_empty()).then(|| format!("{param_name}: {}", param.about));
                    self.missing(stage, "parameter", param_name, hint);
                }
                continue;
            };
            let entry = &entry;
            let mut value = entry.json();
            if let Some(problem) = param.objection(&value) {
                let message = format!("`{}` {problem}", entry.path);
                let choices = param.choices.iter().map(String::as_str);
                let hint = value.as_str().and_then(|text| suggest(text, choices));
                self.reader.wrong::<()>(entry, EntryPart::Value, message, hint);
                continue;
            }
            if param.kind == ParamType::Values {
                match self.values(entry) {
                    Some(values) => value = values,
                    None => continue,
                }
            }
            if let (ParamType::Prompts, Some(tables)) = (param.kind, value.as_object_mut()) {
                // One that another file has is taken out, as a stage is.
                tables.retain(|_, table| *table != Value::Bool(false));
            }
            // Texts about a tool's arguments are named as these.
            let is_about_tools = override_param(card) == Some(param_name.as_str());
            let is_checked = !matches!(param.kind, ParamType::File | ParamType::Paths) && !is_about_tools;
            if is_checked && secret::has_literal(param_name, &value) {
                let message = format!("`{}` holds a secret", entry.path);
                let hint = "keys, records and the run's copy of its run file would hold it: let the program read it from an \
                            environment variable or a file";
                self.reader.wrong_secret::<()>(entry, message, hint.to_owned());
                continue;
            }
            let found = match (param.kind, value.as_str()) {
                (ParamType::File, Some(text)) => {
                    self.file(entry, text).map(|file| vec![(String::new(), file)])
                }
                (ParamType::Model, Some(text)) => self.model(entry, text),
                (ParamType::Command, _) => Some(self.words(entry, &value)),
                (ParamType::Paths, _) => self.paths(entry, &value),
                (ParamType::Prompts, _) => self.prompts(card, entry),
                _ => Some(Vec::new()),
            };
            let Some(found) = found else { continue };
            for (pointer, (path, digest)) in found {
                if let Some(named) = value.pointer_mut(&pointer) {
                    *named = path.display().to_string().into();
                    files.insert(format!("{param_name}{pointer}"), digest);
                }
            }
            // `2` and `2.0` are equal numbers, so they must give the same key.
            if param.kind == ParamType::Number {
                value = value.as_f64().into();
            }
            params.insert(param_name.clone(), value);
        }
        let given = self.layers.top().field("overrides").and_then(|overrides| overrides.field("tools"));
        if let (Some(param), Some(tools)) = (override_param(card), given) {
            match params.contains_key(param) {
                false => _ = params.insert(param.to_owned(), tools.json()),
                true => {
                    let message = format!("stage \"{}\" has `{param}` of its own", stage.name);
                    self.reader.wrong::<()>(
                        &tools,
                        EntryPart::Key,
                        message,
                        Some("remove one of them".into()),
                    );
                }
            }
        }
        self.needs(card, stage, &params);
        (params, files)
    }

    /// Notes missing parameters that given ones need.
    fn needs(&self, card: &Card, stage: &Table<'_, '_>, params: &Map<String, Value>) {
        let is_asked = |value: &Value| *value != Value::Bool(false) && value.as_f64() != Some(0.0);
        for (name, param) in &card.params {
            let own = params.get(name).filter(|own| param.default.as_ref() != Some(*own));
            let entry = stage.fields.get(name.as_str()).filter(|_| own.is_some_and(is_asked));
            let Some(entry) = entry else { continue };
            for needed in &param.needs {
                let any: Vec<&str> = needed.split(" or ").collect();
                if any.iter().any(|needed| stage.fields.contains_key(needed)) {
                    continue;
                }
                let about = |needed: &&str| {
                    let param = card.params.get(*needed).map(|param| &param.about);
                    let about = param.or_else(|| card.inputs.get(*needed).map(|role| &role.about))?;
                    (!about.is_empty()).then(|| format!("{needed}: {about}"))
                };
                let message = format!("`{}` needs `{}`", entry.path, any.join("` or `"));
                let hints: Vec<String> = any.iter().filter_map(about).collect();
                let hint = (!hints.is_empty()).then(|| hints.join("\n"));
                self.reader.wrong::<()>(entry, EntryPart::Key, message, hint);
            }
        }
    }

    fn file(&self, entry: &Entry<'_>, text: &str) -> Option<(PathBuf, Digest)> {
        let path = entry.absolute(text);
        match self.files.digest(&path) {
            Ok(digest) => Some((path, digest)),
            Err(cause) => {
                let cause = std::error::Error::source(&cause).map(ToString::to_string).unwrap_or_default();
                let message = format!("cannot read \"{text}\": {cause}");
                let hint = match text.contains(char::is_whitespace) {
                    true => "it wants the path of a file, relative to the run file, with this text in it",
                    false => "paths are relative to the run file",
                };
                self.reader.wrong(entry, EntryPart::Value, message, Some(hint.to_owned()))
            }
        }
    }

    /// Files, and folders of traces, with their digests.
    fn paths(&self, entry: &Entry<'_>, paths: &Value) -> Option<Vec<FoundFile>> {
        let paths = paths.as_array().into_iter().flatten().filter_map(Value::as_str);
        let found = |text: &str| {
            let path = entry.absolute(text);
            if !path.is_dir() {
                return self.file(entry, text);
            }
            match self.files.folder(&path, ParamType::Paths.wanted_in(&path)) {
                Ok(digest) => Some((path, digest)),
                Err(cause) => self.reader.wrong(entry, EntryPart::Value, cause.to_string(), None),
            }
        };
        paths.enumerate().map(|(index, text)| Some((format!("/{index}"), found(text)?))).collect()
    }

    /// The files that tables name under `system`, unless that is an input.
    fn prompts(&self, card: &Card, entry: &Entry<'_>) -> Option<Vec<FoundFile>> {
        let mut found = Vec::new();
        for (name, table) in entry.fields()? {
            if table.json() == Value::Bool(false) {
                continue;
            }
            if name.contains(['/', '~']) {
                let message = format!("\"{name}\" should have neither `/` nor `~`");
                return self.reader.wrong(&table, EntryPart::Key, message, None);
            }
            let Some(system) = table.field("system") else { continue };
            match system.text() {
                Some(text) if card.inputs.contains_key(text) => {}
                Some(text) => found.push((format!("/{name}/system"), self.file(&system, text)?)),
                None => return self.reader.mistyped(&system, "a path or the name of an input"),
            }
        }
        Some(found)
    }

    /// The words of a command that are files, with their paths and digests.
    fn words(&self, entry: &Entry<'_>, command: &Value) -> Vec<FoundFile> {
        let words = command.as_array().into_iter().flatten().filter_map(Value::as_str).enumerate();
        let file = |(index, word): (usize, &str)| {
            let path = Some(entry.absolute(word)).filter(|path| path.is_file() && !word.starts_with('/'))?;
            let digest = self.files.digest(&path).ok()?;
            Some((format!("/{index}"), (path, digest)))
        };
        words.filter_map(file).collect()
    }

    /// Lists of values by name, those in files included.
    fn values(&self, entry: &Entry<'_>) -> Option<Value> {
        let of = |(name, entry): (&str, Entry<'_>)| {
            let values = match entry.json() {
                Value::String(path) => self.lines(&entry, &path)?,
                Value::Array(items) => items,
                _ => return self.reader.mistyped(&entry, "a list or the path of a text file"),
            };
            let is_single = |value: &&Value| value.is_string() || value.is_number() || value.is_boolean();
            if let Some(other) = values.iter().find(|value| !is_single(value)) {
                let message =
                    format!("`{}` should have single values, found {}", entry.path, json_type(other));
                return self.reader.wrong(&entry, EntryPart::Value, message, None);
            }
            if values.is_empty() {
                let message = format!("`{}` has no value", entry.path);
                let hint = Some("give one or more, or remove the key".to_owned());
                return self.reader.wrong(&entry, EntryPart::Value, message, hint);
            }
            Some((name.to_owned(), Value::Array(values)))
        };
        let fields: Vec<Option<(String, Value)>> = entry.fields()?.into_iter().map(of).collect();
        fields.into_iter().collect::<Option<Map<String, Value>>>().map(Value::Object)
    }

    /// The lines of a text file that have something.
    fn lines(&self, entry: &Entry<'_>, text: &str) -> Option<Vec<Value>> {
        let path = entry.folder().join(text);
        let is_long = std::fs::metadata(&path).is_ok_and(|file| file.len() > MOST_VALUES);
        let content = match is_long {
            true => Err(format!("it has more than {} KiB", MOST_VALUES / 1024)),
            false => std::fs::read_to_string(&path).map_err(|cause| cause.to_string()),
        };
        match content {
            Ok(content) => {
                let lines = content.trim_start_matches('\u{feff}').lines().map(str::trim);
                Some(lines.filter(|line| !line.is_empty()).map(Value::from).collect())
            }
            Err(cause) => {
                let message = format!("cannot read \"{text}\": {cause}");
                let hint = "a text is the path of a file with one value a line, relative to the run file; a single value is a \
                            list: [\"…\"]";
                self.reader.wrong(entry, EntryPart::Value, message, Some(hint.to_owned()))
            }
        }
    }

    /// The folder or GGUF file of a model; nothing for a hub id.
    fn model(&self, entry: &Entry<'_>, text: &str) -> Option<Vec<FoundFile>> {
        let path = entry.absolute(text);
        if model::gguf::is_gguf(&path) {
            return self.file(entry, text).map(|file| vec![(String::new(), file)]);
        }
        if !path.is_dir() {
            let owned = !text.starts_with(['.', '/', '~']) && text.matches('/').count() == 1;
            if owned || text.contains('@') {
                return Some(Vec::new());
            }
            let message = format!("there is no folder \"{text}\"");
            let hint =
                "a folder or GGUF file is relative to the run file; a hub id looks like `Qwen/Qwen3-4B`"
                    .to_owned();
            return self.reader.wrong(entry, EntryPart::Value, message, Some(hint));
        }
        match self.files.folder(&path, ParamType::Model.wanted_in(&path)) {
            Ok(digest) => Some(vec![(String::new(), (path, digest))]),
            Err(cause) => self.reader.wrong(entry, EntryPart::Value, cause.to_string(), None),
        }
    }

    fn missing(&self, stage: &Table<'_, '_>, what: &str, key: &str, hint: Option<String>) {
        if !stage.meant.contains(&key) {
            let message = format!("stage \"{}\" needs the {what} `{key}`", stage.name);
            self.reader.wrong::<()>(stage.entry, EntryPart::Key, message, hint);
        }
    }

    fn inputs(&self, card: &Card, stage: &Table<'_, 'a>) -> Vec<ParsedInput<'a>> {
        let mut inputs = Vec::new();
        for (role_name, role) in &card.inputs {
            let input = |name: &str, entry: Entry<'a>| ParsedInput {
                role: role_name.clone(),
                name: name.to_owned(),
                artifact: role.artifact.clone(),
                entry,
            };
            match stage.fields.get(role_name.as_str()) {
                Some(entry) if role.many => {
                    // One that another file has is taken out, as a stage is.
                    let mut given = self.ordered(entry);
                    given.retain(|(_, entry)| entry.json() != Value::Bool(false));
                    inputs.extend(given.into_iter().map(|(name, entry)| input(name, entry)));
                }
                Some(entry) => inputs.push(input(role_name, entry.clone())),
                None if role.optional => {}
                None => {
                    let hint = format!("{role_name} = \"…\" names a stage that writes {}", role.artifact);
                    self.missing(stage, "input", role_name, Some(hint));
                }
            }
        }
        inputs
    }

    fn loops(&self, table: &Entry<'a>) -> Vec<ParsedLoop<'a>> {
        let all = self.ordered(table);
        let has_stages = |entry: &Entry<'_>| entry.field("stages").is_some();
        let parsed = |(name, entry): &(&'a str, Entry<'a>)| {
            self.check_name(entry, name, EntryPart::Key);
            if matches!(entry.origin(), Origin::Override(_)) && !has_stages(entry) {
                let others = all.iter().filter(|(_, entry)| has_stages(entry));
                return self.not_there("loop", name, entry, others.map(|(name, _)| *name));
            }
            let parsed = self.parsed_loop(name, entry);
            if parsed.is_none() {
                let inner = entry.field("stages").and_then(|stages| stages.fields()).unwrap_or_default();
                self.broken.borrow_mut().extend(inner.into_keys().chain([*name]).map(str::to_owned));
            }
            parsed
        };
        all.iter().filter_map(parsed).collect()
    }

    fn parsed_loop(&self, name: &str, entry: &Entry<'a>) -> Option<ParsedLoop<'a>> {
        let fields = self.reader.table(entry)?;
        if let Some(inner) = fields.get("loop") {
            let message = format!("loop \"{name}\" contains another loop; loops cannot be nested");
            let hint = "to run loops one after the other, start the second one's `carry` from \"first.name\"";
            return self.reader.wrong(inner, EntryPart::Key, message, Some(hint.to_owned()));
        }
        let known = schema_of::<Loop>()["properties"].take();
        self.only(entry, &known.as_object()?.keys().map(String::as_str).collect::<Vec<_>>());
        // If the number is invalid, assume the maximum, so that no lag seems too large.
        let read = self.reader.read::<Loop>(entry);
        let (iterations, patience) =
            read.map_or((MOST_ITERATIONS, 0), |found| (found.iterations, found.patience));
        let carry = fields.get("carry").map_or_else(|| Some(BTreeMap::new()), Entry::fields);
        let until = fields.get("until").and_then(|until| self.until(until));
        let begins = fields.get("if").and_then(|begins| self.until(begins));
        let best = fields.get("best").and_then(|best| Some((self.reader.read::<Best>(best)?, best.clone())));
        let stages = fields.get("stages").map_or(Vec::new(), |stages| self.stages(stages, name));
        if stages.is_empty() && self.reader.clean() {
            return self.reader.wrong(entry, EntryPart::Key, format!("loop \"{name}\" has no stages"), None);
        }
        Some(ParsedLoop {
            name: name.to_owned(),
            iterations,
            carry: carry?,
            until,
            begins,
            best,
            patience,
            stages,
            entry: entry.clone(),
        })
    }

    fn until(&self, entry: &Entry<'a>) -> Option<(Until, Entry<'a>)> {
        let until = self.reader.read::<Until>(entry)?;
        let bounded = ["at_least", "at_most"].iter().any(|bound| entry.field(bound).is_some());
        if !bounded {
            let message = format!("`{}` needs `at_least` or `at_most`", entry.path);
            return self.reader.wrong(entry, EntryPart::Key, message, None);
        }
        Some((until, entry.field("metric")?))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        plan::{Overrides, Plan, source::RunFile},
        store::Store,
    };

    /// The parameter `values` of a stage, or the mistakes.
    fn values(folder: &Path, given: &str) -> std::result::Result<Value, String> {
        let text = format!(
            "[server]\ncommand = [\"server\"]\nstate = \"read-only\"\n[stages.tools]\nkind = \"discover\"\n[stages.tasks]\nkind = \
             \"scenarios\"\ntools = \"tools\"\nsource = \"explored\"\nvalues = {given}\n"
        );
        let source = RunFile::parse(&folder.join("run.toml"), text).unwrap();
        let files = FileDigests::load(&Store::open(folder).unwrap());
        let plan = Plan::new(&source, &Overrides::default(), &Cards::new(None), &files)
            .map_err(|cause| cause.to_string())?;
        let mut stages = plan.order().iter().map(|index| &plan.node(*index).stage);
        Ok(stages.find_map(|stage| stage.params.get("values").cloned()).unwrap())
    }

    #[test]
    fn a_file_of_values_is_the_list_of_its_lines() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ids.txt"), "\u{feff}ada_1\n\n bob_2 \r\n").unwrap();
        let found = values(folder.path(), "{ user_id = \"ids.txt\", n = [1, \"x\"] }");
        assert_eq!(found, Ok(serde_json::json!({"user_id": ["ada_1", "bob_2"], "n": [1, "x"]})));
    }

    #[test]
    fn values_that_are_no_lists_are_mistakes_at_their_place() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("empty.txt"), "\n\n").unwrap();
        std::fs::write(folder.path().join("long.txt"), "x\n".repeat(40_000)).unwrap();
        for (given, expected) in [
            (
                "{ id = 7 }",
                "`stages.tasks.values.id` should be a list or the path of a text file, found an integer",
            ),
            ("{ id = [] }", "`stages.tasks.values.id` has no value"),
            ("{ id = \"empty.txt\" }", "`stages.tasks.values.id` has no value"),
            ("{ id = [[1]] }", "`stages.tasks.values.id` should have single values, found a list"),
            ("{ id = \"nothing.txt\" }", "cannot read \"nothing.txt\""),
            ("{ id = \"long.txt\" }", "it has more than 64 KiB"),
            ("[\"x\"]", "`stages.tasks.values` should be a table, found a list"),
        ] {
            let found = values(folder.path(), given).unwrap_err();
            assert!(found.contains(expected) && found.contains("10"), "{given}: {found}");
        }
    }

    #[test]
    fn a_system_prompt_in_a_table_is_a_file_by_its_content_or_the_name_of_an_input() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("own.txt"), "Be brief.").unwrap();
        let exam = |variants: &str| {
            let text = format!(
                "model = \".\"\n[server]\ncommand = [\"server\"]\nstate = \"read-only\"\n[stages.tools]\nkind = \
                 \"discover\"\n[stages.tasks]\nkind = \"scenarios\"\n[stages.exam]\nkind = \"eval\"\npolicies = {{ base = \
                 \"base\" }}\nguide = \"tasks\"\nvariants = {variants}\n"
            );
            let source = RunFile::parse(&folder.path().join("run.toml"), text).unwrap();
            let files = FileDigests::load(&Store::open(folder.path()).unwrap());
            let plan = Plan::new(&source, &Overrides::default(), &Cards::new(None), &files)
                .map_err(|cause| cause.to_string())?;
            let stage = plan.order().iter().map(|index| plan.node(*index).stage.clone());
            Ok::<_, String>(stage.into_iter().find(|stage| stage.name == "exam").unwrap())
        };
        let stage = exam("{ own = { policy = \"base\", system = \"own.txt\" }, \"base+\" = { policy = \"base\", system = \"guide\" } }")
            .unwrap();
        let names: Vec<&String> = stage.files.keys().collect();
        assert_eq!(names, ["variants/own/system"]);
        assert_eq!(stage.file(names[0]), folder.path().join("own.txt"));
        assert_eq!(stage.param_type(names[0]), ParamType::Prompts);
        assert_eq!(stage.params["variants"]["base+"]["system"], "guide");
        assert_eq!(exam("{ own = false }").unwrap().params["variants"], serde_json::json!({}));
        for (variants, expected) in [
            ("{ own = { policy = \"base\", system = \"none.txt\" } }", "cannot read \"none.txt\""),
            (
                "{ own = { policy = \"base\", system = 7 } }",
                "should be a path or the name of an input, found an integer",
            ),
            ("{ \"a/b\" = { policy = \"base\", system = \"own.txt\" } }", "should have neither `/` nor `~`"),
        ] {
            let found = exam(variants).err().unwrap();
            assert!(found.contains(expected), "{variants}: {found}");
        }
    }
}
