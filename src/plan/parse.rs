//! The run file with every value typed and every default filled in; references between stages are still text.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, btree_map::Entry as Slot},
    path::PathBuf,
    sync::Arc,
};

use serde_json::{Map, Value};

use super::{
    base,
    layers::{Entry, Layers, Origin, Overrides},
    reader::{Part, Reader},
    server,
    source::Source,
    upkeep::{self, CacheMode},
};
use crate::{
    engine::EngineSpec,
    error::{Result, did_you_mean},
    hash::Digest,
    mcp::ServerSpec,
    stage::{
        Card, Cards, StageKind,
        card::{ParamType, RESERVED, Section},
        kind, model,
    },
    store::{FileDigests, RemoteSpec},
    usage::Prices,
};

/// A run file before its references are resolved.
pub struct ParsedRun {
    pub name: String,
    pub server: Option<ServerSpec>,
    pub engine: EngineSpec,
    pub remote: Option<RemoteSpec>,
    /// Locations of sections and keys, by dotted path, for mistakes found later.
    pub sections: BTreeMap<&'static str, Origin>,
    /// In file order.
    pub stages: Vec<ParsedStage>,
    pub loops: Vec<ParsedLoop>,
    /// Names of stages and loops that are in the file but could not be parsed.
    pub broken: BTreeSet<String>,
    /// Whether there are no mistakes so far. Only then does a missing name mean that the file lacks it.
    pub is_whole: bool,
}

const MOST_ITERATIONS: u32 = 9999;

/// A stage's values.
pub struct Stage {
    /// As the run file names it, with the loop's name if it is in one: `tasks`, `train/rollout`.
    pub name: String,
    pub card: Arc<Card>,
    pub params: Map<String, Value>,
    /// What the stage does. None if the parameters do not parse; preflight checks report why.
    pub kind: Option<Box<dyn StageKind>>,
    /// Digests of the parameters of type `file`, by parameter.
    pub files: BTreeMap<String, Digest>,
    pub seed: u64,
    pub cache: CacheMode,
    /// Judge token prices: the run file's, or the card's.
    pub prices: Option<Prices>,
    /// Where its keys were written; the empty name is the stage itself.
    pub origins: BTreeMap<String, Origin>,
}

pub struct ParsedStage {
    pub name: String,
    pub stage: Arc<Stage>,
    pub inputs: Vec<ParsedInput>,
    /// The carried value that an output of this stage renews.
    pub yields: Option<Entry>,
    pub entry: Entry,
}

/// An artifact that a stage reads.
pub struct ParsedInput {
    pub role: String,
    /// The role, or the artifact's name if the role takes several.
    pub name: String,
    pub artifact: String,
    pub entry: Entry,
}

pub struct ParsedLoop {
    pub name: String,
    pub iterations: u32,
    pub carry: BTreeMap<String, Entry>,
    pub until: Option<ParsedUntil>,
    pub stages: Vec<ParsedStage>,
    pub entry: Entry,
}

pub struct ParsedUntil {
    pub metric: Entry,
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
}

/// Parses the run file with its overrides. Notes mistakes; returns what can be parsed despite them.
pub fn parse(
    reader: &Reader<'_>,
    (source, overrides): (&Source, &Overrides),
    cards: &Cards,
    files: &FileDigests,
) -> Result<Option<ParsedRun>> {
    let layers = Layers::new(source, overrides, reader);
    let mut top = base::written_out(reader, layers.merged(source));
    let mut kinds: BTreeMap<String, Arc<Card>> = BTreeMap::new();
    for stage in stages_of(&mut top) {
        let Some(kind) = stage.kind() else { continue };
        let card = match kinds.entry(kind.to_owned()) {
            Slot::Occupied(known) => Some(known.into_mut()),
            Slot::Vacant(slot) => cards.get(kind)?.map(|card| slot.insert(card)),
        };
        if let Some(card) = card {
            let params = card.params.iter();
            stage.fill(params.filter_map(|(name, param)| Some((name, param.default.as_ref()?))));
        }
    }
    let parser = RunFileParser {
        reader,
        source,
        kinds: &kinds,
        cards,
        files,
        seed: 0,
        short: base::is_short(&top),
        broken: RefCell::default(),
    };
    Ok(parser.parse(&top))
}

/// The entries in the tables of stages, in and outside loops. Malformed ones are noted later.
fn stages_of(top: &mut Entry) -> Vec<&mut Entry> {
    let mut tables = Vec::new();
    for (name, section) in top.fields_mut() {
        match name.as_str() {
            "stages" => tables.push(section),
            "loop" => {
                let loops = section.fields_mut().flat_map(|(_, turns)| turns.fields_mut());
                tables.extend(loops.filter(|(name, _)| *name == "stages").map(|(_, table)| table));
            }
            _ => {}
        }
    }
    tables.into_iter().flat_map(Entry::fields_mut).map(|(_, stage)| stage).collect()
}

/// Where the keys of a stage's table were written.
fn origins(stage: &Entry, fields: &BTreeMap<String, Entry>) -> BTreeMap<String, Origin> {
    let written = fields.iter().filter(|(_, entry)| entry.origin != Origin::Card);
    let own = std::iter::once((String::new(), stage.origin.clone()));
    own.chain(written.map(|(name, entry)| (name.clone(), entry.origin.clone()))).collect()
}

/// A stage's table in the run file.
struct Table<'a> {
    name: &'a str,
    entry: &'a Entry,
    fields: &'a BTreeMap<String, Entry>,
    /// Known keys that misspelt ones probably meant.
    meant: Vec<&'a str>,
}

struct RunFileParser<'a> {
    reader: &'a Reader<'a>,
    source: &'a Source,
    kinds: &'a BTreeMap<String, Arc<Card>>,
    cards: &'a Cards,
    files: &'a FileDigests,
    seed: u64,
    /// Whether `model` expands to a stage.
    short: bool,
    broken: RefCell<BTreeSet<String>>,
}

impl RunFileParser<'_> {
    fn parse(mut self, top: &Entry) -> Option<ParsedRun> {
        self.only(top, &["name", "seed", base::KEY, "server", "engine", "cache", "stages", "loop"]);
        let sections = self.reader.table(top)?;
        let name = match sections.get("name").map(|entry| (entry, self.reader.text(entry))) {
            Some((entry, name)) => {
                let name = name.unwrap_or("run");
                self.check_name(entry, name, Part::Value);
                name.to_owned()
            }
            None => self.source.path().file_stem().map_or("run".into(), |stem| {
                stem.to_string_lossy().replace(|letter: char| !letter.is_ascii_alphanumeric(), "-")
            }),
        };
        if let Some(seed) = sections.get("seed") {
            self.seed = self.reader.integer(seed, 0).unwrap_or_default();
        }
        let server = sections.get("server").map(|entry| server::server(self.reader, entry, self.source));
        let engine = server::engine(self.reader, sections.get("engine"));
        let remote = match sections.get("cache") {
            Some(entry) => upkeep::remote(self.reader, entry, self.source),
            None => None,
        };
        let stages = sections.get("stages").map_or(Vec::new(), |entry| self.stages(entry, ""));
        let loops = sections.get("loop").map_or(Vec::new(), |entry| self.loops(entry));

        let mut names: BTreeMap<&str, &Entry> = BTreeMap::new();
        let all = stages.iter().map(|stage| (stage.name.as_str(), &stage.entry));
        let all = all.chain(loops.iter().map(|turns| (turns.name.as_str(), &turns.entry)));
        let inner = loops.iter().flat_map(|turns| &turns.stages);
        let inner: Vec<_> = inner.map(|stage| (stage.name.as_str(), &stage.entry)).collect();
        for (name, entry) in all {
            self.unique(&mut names, name, entry);
        }
        for (name, entry) in inner {
            if names.contains_key(name) {
                self.twice(name, entry);
            }
        }
        if stages.is_empty() && loops.is_empty() && self.reader.clean() {
            return self.reader.wrong(top, Part::Key, "the run file has no stages".into(), None);
        }
        for stage in stages.iter().chain(loops.iter().flat_map(|turns| &turns.stages)) {
            if stage.stage.card.uses.contains(&Section::Server) && server.is_none() {
                let message =
                    format!("stage \"{}\" needs a server, the run file has no [server]", stage.name);
                let hint = "add one: [server] with command = [\"./your-server\", \"--stdio\"], or with a url"
                    .to_owned();
                self.reader.wrong::<()>(&stage.entry, Part::Key, message, Some(hint));
            }
        }
        let mut places = BTreeMap::new();
        let of_engine = |key| sections.get("engine").and_then(|engine| self.reader.table(engine)?.get(key));
        for (path, entry) in [
            ("server", sections.get("server")),
            ("engine.devices", of_engine("devices")),
            ("engine.kv_cache_mib", of_engine("kv_cache_mib")),
        ] {
            places.extend(entry.map(|entry| (path, entry.origin.clone())));
        }
        let engine = engine.or_else(|| server::engine(self.reader, None))?;
        let (broken, is_whole) = (self.broken.take(), self.reader.clean());
        let server = server.flatten();
        Some(ParsedRun { name, server, engine, remote, sections: places, stages, loops, broken, is_whole })
    }

    /// Notes unknown keys of a table that holds stages. Their contents may be stages.
    fn only<'k>(&self, table: &Entry, known: &[&'k str]) -> Vec<&'k str> {
        let unknown = table.names().filter(|name| !known.contains(&name.as_str()));
        let within = unknown.filter_map(|name| table.field(name)).flat_map(Entry::names);
        self.broken.borrow_mut().extend(within.cloned());
        self.reader.only(table, known)
    }

    fn unique<'e>(&self, names: &mut BTreeMap<&'e str, &'e Entry>, name: &'e str, entry: &'e Entry) {
        match names.entry(name) {
            Slot::Vacant(slot) => _ = slot.insert(entry),
            Slot::Occupied(_) => self.twice(name, entry),
        }
    }

    fn twice(&self, name: &str, entry: &Entry) {
        let message = format!("\"{name}\" is the name of two things");
        let hint = match self.short && name == base::STAGE {
            true => format!("`{}` makes a stage named \"{name}\": this one needs another name", base::KEY),
            false => "stages and loops share one set of names".to_owned(),
        };
        self.reader.wrong::<()>(entry, Part::Key, message, Some(hint));
    }

    fn check_name(&self, entry: &Entry, name: &str, part: Part) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || !name.bytes().all(plain) {
            let message = format!("\"{name}\" should be a name of letters, digits, `_` and `-`");
            self.reader.wrong::<()>(entry, part, message, None);
        }
    }

    /// Entries of a table, in file order.
    fn ordered<'e>(&self, table: &'e Entry) -> Vec<(&'e String, &'e Entry)> {
        let mut entries: Vec<_> = self.reader.table(table).into_iter().flatten().collect();
        entries.sort_by_key(|(_, entry)| match &entry.origin {
            Origin::File { key, .. } => key.start,
            _ => usize::MAX,
        });
        entries
    }

    fn stages(&self, table: &Entry, within: &str) -> Vec<ParsedStage> {
        let all = self.ordered(table);
        let stage = |(name, entry): &(&String, &Entry)| {
            self.check_name(entry, name, Part::Key);
            if matches!(entry.origin, Origin::Override(_)) && entry.kind().is_none() {
                let others = all.iter().filter(|(_, entry)| entry.kind().is_some());
                return self.not_there("stage", name, entry, others.map(|(name, _)| name.as_str()));
            }
            let stage = self.stage(name, entry, within);
            self.broken.borrow_mut().extend(stage.is_none().then(|| (*name).clone()));
            stage
        };
        all.iter().filter_map(stage).collect()
    }

    /// Notes an override of a stage or loop that the run file lacks.
    fn not_there<'n, T>(
        &self,
        what: &str,
        name: &str,
        entry: &Entry,
        others: impl Iterator<Item = &'n str> + Clone,
    ) -> Option<T> {
        let hint = match did_you_mean(name, others.clone()) {
            Some(near) => Some(format!("did you mean \"{near}\"?")),
            None => {
                let others: Vec<&str> = others.collect();
                (!others.is_empty()).then(|| format!("{what}s: {}", others.join(", ")))
            }
        };
        let message = format!("the run file has no {what} \"{name}\"");
        self.reader.wrong(entry, Part::Key, message, hint)
    }

    fn stage(&self, name: &str, entry: &Entry, within: &str) -> Option<ParsedStage> {
        let fields = self.reader.table(entry)?;
        let Some(kind_entry) = fields.get("kind") else {
            let message = format!("stage \"{name}\" has no `kind`");
            let hint = format!("kinds: {}", self.cards.kinds().join(", "));
            return self.reader.wrong(entry, Part::Key, message, Some(hint));
        };
        let kind = self.reader.text(kind_entry)?;
        let Some(card) = self.kinds.get(kind) else {
            let kinds = self.cards.kinds();
            let hint = match did_you_mean(kind, kinds.iter().map(String::as_str)) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("kinds: {}", kinds.join(", ")),
            };
            let message = format!("unknown stage kind \"{kind}\"");
            return self.reader.wrong(kind_entry, Part::Value, message, Some(hint));
        };
        let known: Vec<&str> = RESERVED
            .into_iter()
            .chain(card.inputs.keys().map(String::as_str))
            .chain(card.params.keys().map(String::as_str))
            .collect();
        let meant = self.reader.only(entry, &known);
        let table = Table { name, entry, fields, meant };

        let (params, files) = self.params(card, &table);
        let seed = fields.get("seed").and_then(|seed| self.reader.integer(seed, 0));
        let cache = fields.get("cache").and_then(|cache| upkeep::cache_mode(self.reader, cache));
        let prices = fields.get("prices").and_then(|prices| upkeep::prices(self.reader, prices));
        let stage = Stage {
            name: if within.is_empty() { name.to_owned() } else { format!("{within}/{name}") },
            card: card.clone(),
            kind: kind::stage(card, &params).ok(),
            params,
            files,
            seed: seed.unwrap_or(self.seed),
            cache: cache.unwrap_or(CacheMode::Use),
            prices: prices.or(card.prices),
            origins: origins(entry, fields),
        };
        let yields = fields.get("yields").filter(|yields| self.reader.text(yields).is_some());
        if let Some(yields) = yields.filter(|_| within.is_empty()) {
            self.reader.wrong::<()>(yields, Part::Key, "`yields` has a meaning within a loop".into(), None);
        }
        Some(ParsedStage {
            name: name.to_owned(),
            inputs: self.inputs(card, &table),
            yields: yields.cloned(),
            stage: Arc::new(stage),
            entry: entry.place(),
        })
    }

    fn params(&self, card: &Card, stage: &Table<'_>) -> (Map<String, Value>, BTreeMap<String, Digest>) {
        let (mut params, mut files) = (Map::new(), BTreeMap::new());
        for (param_name, param) in &card.params {
            let Some(entry) = stage.fields.get(param_name) else {
                if !param.optional {
                    let message = format!("stage \"{}\" needs the parameter `{param_name}`", stage.name);
                    let hint = (!param.about.is_empty()).then(|| format!("{param_name}: {}", param.about));
                    self.missing(stage, param_name, message, hint);
                }
                continue;
            };
            let mut value = entry.value.json();
            if let Some(problem) = param.objection(&value) {
                let message = format!("`{}` {problem}", entry.path);
                let choices = param.choices.iter().map(String::as_str);
                let near = value.as_str().and_then(|text| did_you_mean(text, choices));
                let hint = near.map(|near| format!("did you mean \"{near}\"?"));
                self.reader.wrong::<()>(entry, Part::Value, message, hint);
                continue;
            }
            match (param.kind, value.as_str()) {
                (ParamType::File, Some(text)) => {
                    let Some((path, digest)) = self.file(entry, text) else { continue };
                    value = path.display().to_string().into();
                    files.insert(param_name.clone(), digest);
                }
                (ParamType::Model, Some(text)) => {
                    let Some(folder) = self.model(entry, text) else { continue };
                    if let Some((path, digest)) = folder {
                        value = path.display().to_string().into();
                        files.insert(param_name.clone(), digest);
                    }
                }
                // `2` and `2.0` are equal numbers, so they must give the same key.
                (ParamType::Number, _) => value = value.as_f64().into(),
                _ => {}
            }
            params.insert(param_name.clone(), value);
        }
        self.needs(card, stage, &params);
        (params, files)
    }

    /// Notes missing parameters that given ones need.
    fn needs(&self, card: &Card, stage: &Table<'_>, params: &Map<String, Value>) {
        let is_asked = |value: &Value| *value != Value::Bool(false) && value.as_f64() != Some(0.0);
        for (name, param) in &card.params {
            let entry = stage.fields.get(name).filter(|_| params.get(name).is_some_and(is_asked));
            let Some(entry) = entry else { continue };
            for needed in param.needs.iter().filter(|needed| !stage.fields.contains_key(*needed)) {
                let about = card.params.get(needed).map(|needed| needed.about.as_str()).unwrap_or_default();
                let message = format!("`{}` needs `{needed}` beside it", entry.path);
                let hint = (!about.is_empty()).then(|| format!("{needed}: {about}"));
                self.reader.wrong::<()>(entry, Part::Key, message, hint);
            }
        }
    }

    fn file(&self, entry: &Entry, text: &str) -> Option<(PathBuf, Digest)> {
        let path = self.source.folder().join(text);
        let path = std::path::absolute(&path).unwrap_or(path);
        match self.files.digest(&path) {
            Ok(digest) => Some((path, digest)),
            Err(cause) => {
                let cause = std::error::Error::source(&cause).map(ToString::to_string).unwrap_or_default();
                let message = format!("cannot read \"{text}\": {cause}");
                let hint = "paths are relative to the run file".to_owned();
                self.reader.wrong(entry, Part::Value, message, Some(hint))
            }
        }
    }

    /// The folder of a model and its digest; the inner option is none for a hub id.
    fn model(&self, entry: &Entry, text: &str) -> Option<Option<(PathBuf, Digest)>> {
        let path = self.source.folder().join(text);
        let path = std::path::absolute(&path).unwrap_or(path);
        if !path.is_dir() {
            let owned = !text.starts_with(['.', '/', '~']) && text.matches('/').count() == 1;
            if owned || text.contains('@') {
                return Some(None);
            }
            let message = format!("there is no folder \"{text}\"");
            let hint = "a folder is relative to the run file; a hub id looks like `Qwen/Qwen3-4B`".to_owned();
            return self.reader.wrong(entry, Part::Value, message, Some(hint));
        }
        match self.files.folder(&path, model::wanted_in(&path)) {
            Ok(digest) => Some(Some((path, digest))),
            Err(cause) => self.reader.wrong(entry, Part::Value, cause.to_string(), None),
        }
    }

    fn missing(&self, stage: &Table<'_>, key: &str, message: String, hint: Option<String>) {
        if !stage.meant.contains(&key) {
            self.reader.wrong::<()>(stage.entry, Part::Key, message, hint);
        }
    }

    fn inputs(&self, card: &Card, stage: &Table<'_>) -> Vec<ParsedInput> {
        let mut inputs = Vec::new();
        for (role_name, role) in &card.inputs {
            let input = |name: &str, entry: &Entry| ParsedInput {
                role: role_name.clone(),
                name: name.to_owned(),
                artifact: role.artifact.clone(),
                entry: entry.clone(),
            };
            match stage.fields.get(role_name) {
                Some(entry) if role.many => {
                    inputs.extend(self.ordered(entry).into_iter().map(|(name, entry)| input(name, entry)));
                }
                Some(entry) => inputs.push(input(role_name, entry)),
                None if role.optional => {}
                None => {
                    let message = format!("stage \"{}\" needs the input `{role_name}`", stage.name);
                    let hint = format!("{role_name} = \"…\" names a stage that writes {}", role.artifact);
                    self.missing(stage, role_name, message, Some(hint));
                }
            }
        }
        inputs
    }

    fn loops(&self, table: &Entry) -> Vec<ParsedLoop> {
        let all = self.ordered(table);
        let has_stages = |entry: &Entry| entry.field("stages").is_some();
        let turns = |(name, entry): &(&String, &Entry)| {
            self.check_name(entry, name, Part::Key);
            if matches!(entry.origin, Origin::Override(_)) && !has_stages(entry) {
                let others = all.iter().filter(|(_, entry)| has_stages(entry));
                return self.not_there("loop", name, entry, others.map(|(name, _)| name.as_str()));
            }
            if let Some(inner) = self.reader.table(entry)?.get("loop") {
                let message = format!("loop \"{name}\" holds another loop: loops are not nested");
                let hint = "loops may follow each other: the second one's `carry` starts from \"first.name\"";
                return self.reader.wrong(inner, Part::Key, message, Some(hint.to_owned()));
            }
            let meant = self.only(entry, &["iterations", "carry", "until", "stages"]);
            let fields = self.reader.table(entry)?;
            let iterations = match fields.get("iterations") {
                Some(iterations) => self.iterations(entry, iterations),
                None if meant.contains(&"iterations") => None,
                None => {
                    let message = format!("loop \"{name}\" has no `iterations`");
                    self.reader.wrong(entry, Part::Key, message, None)
                }
            };
            let carry = match fields.get("carry") {
                Some(carry) => self.reader.table(carry).cloned(),
                None => Some(BTreeMap::new()),
            };
            let until = fields.get("until").map(|until| self.until(until));
            let stages = fields.get("stages").map_or(Vec::new(), |stages| self.stages(stages, name));
            if stages.is_empty() && self.reader.clean() {
                let message = format!("loop \"{name}\" has no stages");
                return self.reader.wrong(entry, Part::Key, message, None);
            }
            let (name, entry) = ((*name).clone(), (*entry).clone());
            // If the number is invalid, assume the maximum, so that no lag seems too large.
            let iterations = iterations.unwrap_or(MOST_ITERATIONS);
            Some(ParsedLoop { name, iterations, carry: carry?, until: until.flatten(), stages, entry })
        };
        let parsed = |named: &(&String, &Entry)| {
            let drafted = turns(named);
            if drafted.is_none() {
                let (name, entry) = named;
                let inner = entry.field("stages").into_iter().flat_map(Entry::names);
                self.broken.borrow_mut().extend(inner.chain([*name]).cloned());
            }
            drafted
        };
        all.iter().filter_map(parsed).collect()
    }

    fn iterations(&self, turns: &Entry, entry: &Entry) -> Option<u32> {
        let iterations = self.reader.integer(entry, 1)?;
        u32::try_from(iterations).ok().filter(|count| *count <= MOST_ITERATIONS).or_else(|| {
            let message = format!("`{}.iterations` should be at most {MOST_ITERATIONS}", turns.path);
            self.reader.wrong(entry, Part::Value, message, None)
        })
    }

    fn until(&self, entry: &Entry) -> Option<ParsedUntil> {
        self.reader.only(entry, &["metric", "at_least", "at_most"]);
        let fields = self.reader.table(entry)?;
        let Some(metric) = fields.get("metric") else {
            let message = format!("`{}` needs a `metric`", entry.path);
            let hint = "for example `metric = \"update.success\"`".to_owned();
            return self.reader.wrong(entry, Part::Key, message, Some(hint));
        };
        let text = self.reader.text(metric);
        let bound = |key: &str| match fields.get(key) {
            Some(entry) => self.reader.number(entry).map(Some),
            None => Some(None),
        };
        let (at_least, at_most) = (bound("at_least"), bound("at_most"));
        let (_, at_least, at_most) = (text?, at_least?, at_most?);
        if at_least.is_none() && at_most.is_none() {
            let message = format!("`{}` needs `at_least` or `at_most`", entry.path);
            return self.reader.wrong(entry, Part::Key, message, None);
        }
        Some(ParsedUntil { metric: metric.clone(), at_least, at_most })
    }
}
