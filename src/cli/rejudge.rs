//! `mcprl rejudge`: scores the episodes of a run with another judge and shows what would change. Writes nothing into the run.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::{
    Outcome,
    locations::Locations,
    run_args::environment,
    runtime,
    stage_context::{Notes, outside_a_run},
    target::Target,
};
use crate::{
    data::{self, JudgeAudit, Reward, Trajectory},
    error::{At, Diagnostic, Result},
    exec::{
        StageRows,
        history::{self, StageHistory, Stages},
    },
    plan::{Job, Ledger, Node, NodeIndex, Overrides, Plan, ReadyInputs, ResolvedInput, RunFile, top_level},
    stage::{self, Cards, Context, Input, Metrics, RewardChange, compare_rewards},
    store::{FileDigests, Output, Store, StoreError},
    text::percent,
    ui::{OutputFormat, Printer, plural},
    usage::Prices,
};

#[derive(Args)]
pub struct Rejudge {
    /// A run, for all its stages that write rewards, or one of them: `latest`, `latest/train[3]/reward`.
    #[arg(value_name = "RUN[/STAGE]")]
    run: String,
    /// Change a parameter of the judge: `--set weights.relative=1.0 --set model=…`. A key that begins with a section is one of
    /// the run file, as in `mcprl run`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Take the judge from another run file: its stage of the same name, or its only one that writes rewards.
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,
    #[command(flatten)]
    locations: Locations,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "rejudge", class = usage)]
enum RejudgeError {
    #[error("run \"{run}\" has no finished stage that judges trajectories")]
    #[hint = "`mcprl show {run}` lists its stages"]
    NoRewards { run: String },
    #[error("the run file of \"{run}\" cannot be read")]
    #[diagnostic(class = work)]
    #[hint = "name a run file with `--with FILE`"]
    NoSpec { run: String },
    #[error("{file} has no stage \"{stage}\", and not exactly one that writes rewards")]
    #[hint = "give the stage the same name in both files"]
    NoJudge { file: PathBuf, stage: String },
    #[error("the result of \"{writer}\", which is the judge's `{role}`, is not in the cache")]
    #[hint = "run a run file that has the stage \"{writer}\" with these parameters first"]
    NoInput { role: String, writer: String },
    #[error("cannot make a temporary folder")]
    #[diagnostic(class = work)]
    Scratch(#[source] std::io::Error),
}

/// What another judge makes of a stage's episodes.
#[derive(Serialize)]
struct Rejudged {
    stage: String,
    change: RewardChange,
    metrics: Metrics,
    dollars: Option<f64>,
    notes: Vec<String>,
    audit: Vec<JudgeAudit>,
    #[serde(skip)]
    tables: Tables,
}

/// Episodes with both rewards.
#[derive(Default)]
struct Tables {
    trajectories: Vec<Trajectory>,
    before: Vec<Reward>,
    after: Vec<Reward>,
}

impl Rejudge {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let Target { store, run, part } = Target::new(&self.locations, &self.run)?;
        let run = history::run(&store, &run)?;
        let stages = Stages::new(&store, &run);
        let nodes = match &part {
            Some(part) => run.named(part)?,
            None => run.nodes.iter().collect(),
        };
        let cards = self.locations.cards(self.with.as_deref());
        let judged: Vec<StageHistory> =
            nodes.into_iter().map(|node| stages.stage(node)).filter(|stage| judges(&cards, stage)).collect();
        if judged.is_empty() {
            return Err(RejudgeError::NoRewards { run: run.id }.into());
        }
        let (plan, shown) = self.plan(&store, &run.id, &cards, &judged)?;
        let of_run: Vec<StageHistory> = run.nodes.iter().map(|node| stages.stage(node)).collect();

        let mut ledger = Ledger::new(&plan, &store);
        for index in plan.order() {
            let cached = |job: &Job| Ok(job.cached(&plan, &store).map(|(record, _)| record.into()));
            ledger.resolve(*index, &[], cached)?;
        }
        let runtime = runtime()?;
        let mut all = Vec::new();
        for stage in &judged {
            let id = &stage.node.id;
            let index = same(&plan, id)
                .ok_or_else(|| RejudgeError::NoJudge { file: shown.clone(), stage: id.clone() })?;
            if printer.format == OutputFormat::Human {
                printer.say(&format!("judging {id}"));
            }
            let inputs = self.inputs(&ledger, &store, plan.node(index), stage, &of_run)?;
            let read =
                inputs.iter().flat_map(|(role, inputs)| inputs.iter().map(move |input| (role, input.digest)));
            let before = stage.outputs.iter().map(|written| (&written.output, written.digest));
            for (name, digest) in read.chain(before) {
                history::check(&store, &run.id, &format!("{id}.{name}"), &digest)?;
            }
            let rejudged = runtime.block_on(rejudge(&store, &plan, index, stage, inputs));
            all.push(rejudged.at(|| format!("stage \"{id}\""))?);
        }
        drop(runtime);
        let mut tables = Tables::default();
        for rejudged in &mut all {
            tables.trajectories.append(&mut rejudged.tables.trajectories);
            tables.before.append(&mut rejudged.tables.before);
            tables.after.append(&mut rejudged.tables.after);
        }
        let total = compare_rewards(&tables.trajectories, &tables.before, &tables.after);
        if printer.format == OutputFormat::Human {
            all.iter().flat_map(|stage| &stage.notes).for_each(|note| printer.say(note));
        }
        let json = json!({ "run": run.id, "total": total, "stages": all });
        printer.show(&json, || text(&run.id, &total, &all));
        Ok(Outcome::Success)
    }

    /// What the judge reads: what it read in the run, but a model of its own as the plan has it now.
    fn inputs(
        &self,
        ledger: &Ledger<'_>,
        store: &Store,
        node: &Node,
        judged: &StageHistory,
        of_run: &[StageHistory],
    ) -> Result<BTreeMap<String, Vec<Input>>> {
        let mut inputs: BTreeMap<String, Vec<Input>> = BTreeMap::new();
        let is_set = |role: &str| {
            let key =
                |set: &String| set.split('=').next().and_then(|key| key.rsplit('.').next()) == Some(role);
            self.with.is_some() || self.set.iter().any(key)
        };
        // The stages of the run are those of the plan.
        let is_run = self.with.is_none() && !self.set.iter().any(|text| is_of_file(text));
        for edge in &node.inputs {
            let is_of_run =
                node.stage.card.inputs.get(&edge.role).is_none_or(|role| role.artifact != "policy");
            let known =
                judged.inputs.iter().find(|input| (&input.role, &input.name) == (&edge.role, &edge.name));
            let known = known.filter(|_| is_of_run || !is_set(&edge.role)).map(|input| input.digest);
            let writer =
                edge.from.output().map(|(writer, port)| (ledger.plan().node(writer).id.as_str(), port));
            let written = || {
                let (id, port) = writer.filter(|_| is_run)?;
                let stage = of_run.iter().find(|stage| stage.node.id == id)?;
                Some(stage.outputs.iter().find(|written| written.output == port)?.digest)
            };
            let (digest, path) = match known.or_else(written) {
                Some(digest) => {
                    let mut outputs = of_run.iter().flat_map(|stage| &stage.outputs);
                    let found = outputs.rfind(|written| written.digest == digest);
                    let found = found.ok_or_else(|| StoreError::Absent { digest: digest.short() })?;
                    (digest, found.path.clone())
                }
                None => {
                    let (role, writer) = (edge.role.clone(), writer.unwrap_or_default().0.to_owned());
                    let output = ledger.read(edge).ok_or(RejudgeError::NoInput { role, writer })?;
                    (output.digest, store.path(&output))
                }
            };
            let path = std::path::absolute(&path).unwrap_or(path);
            inputs.entry(edge.role.clone()).or_default().push(Input {
                name: edge.name.clone(),
                digest,
                path,
            });
        }
        Ok(inputs)
    }

    /// The plan whose judges are used, and its file: that of the run, or `--with`, with the changes of `--set`.
    fn plan(
        &self,
        store: &Store,
        run: &str,
        cards: &Cards,
        judged: &[StageHistory],
    ) -> Result<(Plan, PathBuf)> {
        let spec = history::spec(store, run);
        let (source, cards, mut set) = match (&self.with, spec) {
            (Some(file), _) => (RunFile::read(file)?, cards.clone(), Vec::new()),
            (None, Some(spec)) => {
                let set = spec.overrides.spelled();
                (spec.source()?, Cards::new(spec.stages), set)
            }
            (None, None) => return Err(RejudgeError::NoSpec { run: run.to_owned() }.into()),
        };
        let file = source.path().to_owned();
        let files = FileDigests::load(store);
        let new = |set: Vec<String>| Plan::new(&source, &Overrides::new(environment(), set), &cards, &files);
        let of_file = self.set.iter().filter(|text| is_of_file(text));
        set.extend(of_file.cloned());
        let short: Vec<&String> = self.set.iter().filter(|text| !is_of_file(text)).collect();
        if !short.is_empty() {
            // Where in the file the judges are, which is known after a first look.
            let plan = new(set.clone())?;
            let mut places: Vec<String> = judged
                .iter()
                .filter_map(|stage| Some(plan.node(same(&plan, &stage.node.id)?).stage.path.clone()))
                .collect();
            places.dedup();
            set.extend(
                places.iter().flat_map(|place| short.iter().map(move |text| format!("{place}.{text}"))),
            );
        }
        Ok((new(set)?, file))
    }
}

/// Whether the key begins with a section of the run file: the others are parameters of the judge.
fn is_of_file(set: &str) -> bool {
    let key = set.split('=').next().unwrap_or_default();
    key.split_once('.').is_some_and(|(section, _)| top_level().contains(&section))
}

/// Whether a finished stage writes rewards of trajectories.
fn judges(cards: &Cards, stage: &StageHistory) -> bool {
    let card = stage.fields.as_ref().and_then(|fields| cards.get(&fields.kind).ok().flatten());
    let reads = |role: &str| stage.inputs.iter().any(|input| input.role == role);
    card.is_some_and(|card| card.output_of_type("rewards").is_some())
        && reads("trajectories")
        && stage.outputs.iter().any(|output| output.output == "rewards")
}

/// The stage of this name; else the only one that writes rewards.
fn same(plan: &Plan, id: &str) -> Option<NodeIndex> {
    let mut nodes = plan.order().to_vec();
    if let Some(index) = nodes.iter().find(|index| plan.node(**index).id == id) {
        return Some(*index);
    }
    nodes.retain(|index| plan.node(*index).stage.card.output_of_type("rewards").is_some());
    // The iterations of a loop share one stage.
    let path = |index: &NodeIndex| &plan.node(*index).stage.path;
    let first = nodes.first()?;
    nodes.iter().all(|index| path(index) == path(first)).then_some(*first)
}

/// The inputs as those of a node.
fn ready(index: NodeIndex, inputs: &BTreeMap<String, Vec<Input>>) -> ReadyInputs {
    let input = |input: &Input| ResolvedInput {
        name: input.name.clone(),
        output: Output { digest: input.digest, file: None },
        writer: index.index(),
    };
    let inputs = inputs.iter().map(|(role, inputs)| (role.clone(), inputs.iter().map(input).collect()));
    ReadyInputs { inputs: inputs.collect(), ..ReadyInputs::default() }
}

async fn rejudge(
    store: &Store,
    plan: &Plan,
    index: NodeIndex,
    judged: &StageHistory,
    inputs: BTreeMap<String, Vec<Input>>,
) -> Result<Rejudged> {
    let scratch = tempfile::tempdir().map_err(RejudgeError::Scratch)?;
    let node = plan.node(index);
    let card = &node.stage.card;
    // Replies are kept, as in a run: one that fails goes on where it was, and a run with this judge need not ask again.
    let fields = plan.fields(index, &ready(index, &inputs));
    let key = fields.key();
    store.prepare()?;
    let rows = Arc::new(StageRows::new(store, card, (&fields, &key), 0, (true, ""))?);
    let notes = Arc::new(Notes::default());
    let context = Context {
        stage: judged.node.id.clone(),
        inputs,
        seed: judged.fields.as_ref().map_or(0, |fields| fields.stage_seed(0)),
        prices: node.stage.prices,
        rows: rows.clone(),
        ..outside_a_run((card, &node.stage.params), store, &plan.engine, scratch.path(), &notes)
            .map_err(RejudgeError::Scratch)?
    };
    let metrics = stage::parse(card, &context.params)?.run(&context).await?;
    rows.end_repeated(&key)?;
    let port = card.output_of_type("rewards").unwrap_or("rewards");
    let before = judged.outputs.iter().find(|output| output.output == "rewards");
    let before = before.map(|output| data::read::<Reward>(&output.path)).transpose()?.unwrap_or_default();
    let tables = Tables {
        trajectories: context.read("trajectories")?,
        before,
        after: data::read(&context.output(port, "rewards")?)?,
    };
    let audit = match card.output_of_type("judge_audit") {
        Some(port) => data::read(&context.output(port, "judge_audit")?)?,
        None => Vec::new(),
    };
    let spent = context.meter.total();
    let dollars = node.stage.prices.filter(|_| spent.is_billed()).map(|prices: Prices| prices.of(&spent));
    Ok(Rejudged {
        stage: judged.node.id.clone(),
        change: compare_rewards(&tables.trajectories, &tables.before, &tables.after),
        metrics,
        dollars,
        notes: notes.take(),
        audit,
        tables,
    })
}

/// One line per figure.
fn text(run: &str, total: &RewardChange, stages: &[Rejudged]) -> String {
    let number = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.3}"));
    let share =
        |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{} %", percent(value, 1)));
    let dollars: f64 = stages.iter().filter_map(|stage| stage.dollars).sum();
    let RewardChange { trajectories, groups, unmatched, .. } = total;
    let mut lines = vec![format!(
        "{trajectories} episodes of run {run} in {groups} groups, judged again in {}",
        plural(stages.len(), "stage"),
    )];
    let mut line = |name: &str, value: String| lines.push(format!("  {name:<42} {value}"));
    line(
        "mean reward, before and after",
        format!("{} {}", number(total.mean_before), number(total.mean_after)),
    );
    line("Spearman correlation within groups", number(total.spearman));
    line("Kendall correlation within groups", number(total.kendall));
    line("groups whose best attempt changes", share(total.best_changes));
    line("advantages that change their sign", share(total.sign_flips));
    line("mean change of an advantage", number(total.advantage_change));
    line("groups that only vary before, only after", format!("{} {}", total.flat_after, total.flat_before));
    let trusts = stages.iter().flat_map(|stage| &stage.audit).filter(|row| row.measure == "youden");
    let mut by_judge: BTreeMap<&str, Vec<&JudgeAudit>> = BTreeMap::new();
    trusts.for_each(|row| by_judge.entry(&row.judge).or_default().push(row));
    for (judge, rows) in by_judge {
        let name = format!("trust in {judge}: Youden's J [95 %]");
        match rows[..] {
            [row] => line(&name, format!("{:.2} [{}, {}]", row.value, number(row.low), number(row.high))),
            _ => {
                let mean = rows.iter().map(|row| row.value).sum::<f64>() / rows.len() as f64;
                let values: Vec<String> = rows.iter().map(|row| format!("{:.2}", row.value)).collect();
                line(&name, format!("{mean:.2} on average: {}", values.join(" ")));
            }
        }
    }
    if *unmatched > 0 {
        line("episodes without a reward on one side", unmatched.to_string());
    }
    if dollars > 0.0 {
        line("cost", format!("{dollars:.2} dollars"));
    }
    lines.join("\n")
}
