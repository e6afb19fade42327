//! Checks, before any stage runs, how pending stages would fail and what they will write.
//!
//! It checks each stage without a result, and the writers of what these read. It goes once through the plan's
//! order and passes each stage the expected outputs of the earlier ones ([`crate::stage::preflight`]). If
//! every result is in the store, it checks nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Completion, Ledger, NodeIndex, Plan, Stage,
    error::{Problem, Subject},
    estimate::Uses,
    graph::InputSource,
    key::stage_seed,
};
use crate::{
    error::Failure,
    mcp::Servers,
    stage::{
        self, SharedModels, StageError,
        card::Section,
        preflight::{
            ExpectedInputs, ExpectedOutput, ExpectedOutputs, ExpectedPolicy, Finding, Preflight,
            PreflightContext, Severity,
        },
        shape,
    },
    store::Store,
};

/// The last check of a stage. Iterations of a loop mostly reuse it.
struct Checked {
    inputs: ExpectedInputs,
    finished: bool,
    /// What the machine lacks for it, until that is reported.
    unavailable: Vec<Problem>,
    outputs: Arc<ExpectedOutputs>,
}

/// What is known of a plan's nodes before they run.
pub struct PlanPreflight<'p> {
    plan: &'p Plan,
    outputs: BTreeMap<NodeIndex, Arc<ExpectedOutputs>>,
    findings: Findings,
}

/// Findings about pending stages, without duplicates: each iteration of a loop is inspected, and several
/// stages may lack the same thing.
#[derive(Default)]
pub struct Findings {
    /// Why they would fail.
    pub problems: Vec<Problem>,
    /// Warnings that do not stop them.
    pub notes: Vec<Problem>,
    /// What a plan tells of them.
    pub remarks: Vec<Problem>,
    reported: BTreeSet<(String, String)>,
}

impl Findings {
    fn is_new(&mut self, problem: &Problem) -> bool {
        let place = problem.place.as_ref().map(ToString::to_string).unwrap_or_default();
        self.reported.insert((place, problem.cause.to_string()))
    }

    fn refuse(&mut self, problem: Problem) {
        if self.is_new(&problem) {
            self.problems.push(problem);
        }
    }

    fn remark(&mut self, remark: Problem) {
        if self.is_new(&remark) {
            self.remarks.push(remark);
        }
    }

    fn note(&mut self, note: Problem) {
        if self.is_new(&note) {
            self.notes.push(note);
        }
    }
}

impl<'p> PlanPreflight<'p> {
    /// `is_sure` tells whether a node will run on this machine. Missing hardware or programs are reported
    /// only for such nodes.
    pub fn new(ledger: &Ledger<'p>, store: &Store, is_sure: &dyn Fn(NodeIndex) -> bool) -> Self {
        let plan = ledger.plan();
        let mut preflight = Self { plan, outputs: BTreeMap::new(), findings: Findings::default() };
        let shared = SharedModels::default();
        let needed = needed(plan, ledger);
        let mut checked: BTreeMap<*const Stage, Checked> = BTreeMap::new();
        for index in plan.order().iter().copied().filter(|index| needed[index.index()]) {
            let stage = &plan.node(index).stage;
            let (inputs, finished) = (preflight.inputs(index), ledger.get(index).is_some());
            let before = checked.remove(&Arc::as_ptr(stage));
            let mut now = before
                .filter(|last| last.inputs == inputs && last.finished == finished)
                .unwrap_or_else(|| {
                    let Preflight { findings, outputs } = check(ledger, store, &shared, index, &inputs);
                    let unavailable = if finished { Vec::new() } else { preflight.report(stage, findings) };
                    Checked { inputs, finished, unavailable, outputs: Arc::new(outputs) }
                });
            if !now.unavailable.is_empty() && is_sure(index) {
                now.unavailable.drain(..).for_each(|problem| preflight.findings.refuse(problem));
            }
            preflight.outputs.insert(index, now.outputs.clone());
            checked.insert(Arc::as_ptr(stage), now);
        }
        preflight
    }

    pub fn into_findings(self) -> Findings {
        self.findings
    }

    /// The expected outputs of a node, as far as known.
    pub fn outputs(&self, node: NodeIndex) -> &ExpectedOutputs {
        const NONE: &ExpectedOutputs = &ExpectedOutputs::new();
        self.outputs.get(&node).map_or(NONE, |outputs| outputs)
    }

    fn output(&self, node: NodeIndex, port: &str) -> &ExpectedOutput {
        self.outputs(node).get(port).unwrap_or(&ExpectedOutput::Unknown)
    }

    /// The expected content of an artifact that a node reads.
    fn of(&self, from: &InputSource) -> &ExpectedOutput {
        from.output().map_or(&ExpectedOutput::Unknown, |(node, port)| self.output(node, port))
    }

    /// The policy that a node writes.
    pub(super) fn policy_of(&self, node: NodeIndex) -> Option<&ExpectedPolicy> {
        let port = self.plan.node(node).stage.card.output_of_type("policy")?;
        self.output(node, port).policy()
    }

    /// The shape of the model that a node will use. Its policies mostly share one model.
    pub(super) fn uses(&self, index: NodeIndex) -> Uses {
        let node = self.plan.node(index);
        let roles = node.stage.card.inputs.iter().filter(|(_, role)| role.artifact == "policy");
        let edge = roles.filter_map(|(role, _)| node.inputs.iter().find(|edge| edge.role == *role)).next();
        match edge.map(|edge| self.of(&edge.from).policy()) {
            None => Uses::NoModel,
            Some(Some(policy)) => Uses::Model(shape(&policy.config)),
            Some(None) => Uses::UnknownModel,
        }
    }

    /// The expected content of what a node reads.
    pub(super) fn inputs(&self, index: NodeIndex) -> ExpectedInputs {
        let mut inputs = ExpectedInputs::new();
        for edge in &self.plan.node(index).inputs {
            let expected = self.of(&edge.from).clone();
            inputs.entry(edge.role.clone()).or_default().push((edge.name.clone(), expected));
        }
        inputs
    }

    /// Reports errors and notes. Returns what this machine lacks for the stage.
    fn report(&mut self, stage: &Stage, findings: Vec<Finding>) -> Vec<Problem> {
        let mut unavailable = Vec::new();
        for finding in findings {
            let severity = finding.severity;
            let problem = problem(self.plan, stage, finding);
            match severity {
                Severity::Error => self.findings.refuse(problem),
                Severity::Note => self.findings.note(problem),
                Severity::Remark => self.findings.remark(problem),
                Severity::Unavailable => unavailable.push(problem),
            }
        }
        let uses = |section| stage.uses.contains(&section);
        if uses(Section::Server) {
            self.plan.unconfirmed().into_iter().for_each(|problem| self.findings.note(problem));
        }
        let mut lack = |path: &str, cause: Failure| {
            let place = self.plan.section(path);
            let stage = Some(stage.name.clone());
            unavailable.push(Problem { stage, subject: Subject::Section, place, cause });
        };
        // A job has devices and programs of its node.
        let is_here = !stage.executor.is_job();
        if is_here
            && uses(Section::Engine)
            && stage.card.command.is_empty()
            && let Err(cause) = self.plan.engine.check_devices()
        {
            lack("engine.devices", cause.into());
        }
        let servers =
            self.plan.servers.iter().filter(|_| is_here && uses(Section::Server)).flat_map(Servers::iter);
        for (name, server) in servers {
            if let Err(cause) = server.check() {
                let path = if name.is_empty() { "server".to_owned() } else { format!("servers.{name}") };
                lack(&path, cause.into());
            }
        }
        unavailable
    }
}

/// Locates the finding at its parameter, role or section key; at the stage if the run file does not have
/// that.
fn problem(plan: &Plan, stage: &Stage, Finding { about, cause, .. }: Finding) -> Problem {
    let own = about.and_then(|about| plan.place_of(stage, &about).or_else(|| plan.section(&about)));
    let place = own.or_else(|| plan.place_of(stage, ""));
    Problem { stage: Some(stage.name.clone()), subject: Subject::Stage, place, cause }
}

/// Nodes without a result, and the writers of what they read, if anything can be expected of it.
fn needed(plan: &Plan, ledger: &Ledger<'_>) -> Vec<bool> {
    let mut needed = vec![false; plan.graph.nodes.node_count()];
    for index in plan.order().iter().rev() {
        needed[index.index()] |= ledger.get(*index).is_none();
        if !needed[index.index()] {
            continue;
        }
        let node = plan.node(*index);
        for edge in &node.inputs {
            let artifact = node.stage.card.inputs.get(&edge.role).map(|role| role.artifact.as_str());
            if let Some(writer) =
                edge.from.writer().filter(|_| artifact.is_some_and(|of| ExpectedOutput::TYPES.contains(&of)))
            {
                needed[writer.index()] = true;
            }
        }
    }
    needed
}

fn check(
    ledger: &Ledger<'_>,
    store: &Store,
    shared: &SharedModels,
    index: NodeIndex,
    inputs: &ExpectedInputs,
) -> Preflight {
    let plan = ledger.plan();
    let node = plan.node(index);
    let card = &node.stage.card;
    let Some(kind) = &node.stage.kind else {
        let Err(cause) = stage::parse(card, &node.stage.params) else { return Preflight::default() };
        let about = match &cause {
            StageError::Param { name, .. } => Some(name.clone().into()),
            _ => None,
        };
        let finding = Finding { severity: Severity::Error, about, cause: cause.into() };
        return Preflight { findings: vec![finding], ..Preflight::default() };
    };
    let finished = |port: &str| match ledger.get(index)? {
        Completion::Done(done) => Some(store.path(done.outputs.get(port)?)),
        Completion::Skipped => None,
    };
    let iteration = node.iteration.map(|iteration| iteration.number);
    let seed = if card.determinism.draws() { stage_seed(node.stage.seed, &card.kind, iteration) } else { 0 };
    let engine = &plan.engine;
    let prices = node.stage.prices;
    kind.preflight(&PreflightContext { card, seed, inputs, engine, prices, finished: &finished, shared })
}
