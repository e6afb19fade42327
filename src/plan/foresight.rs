//! Predicts how stages that will run would fail, before any runs, and what they will write.
//!
//! It inspects each stage without a result, and the writers of the policies, scenarios and tools that these
//! read. It goes once through the plan's order and passes each stage the expected outputs of the earlier ones
//! ([`crate::stage::prospect`]). If every result is in the store, it inspects nothing.

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
    stage::{
        card::Section,
        command,
        memory::Policy,
        prospect::{Foreseen, Looked, Objection, Outlook, Prospect},
        registry, shape,
    },
    store::Store,
};

type Inputs = BTreeMap<String, Vec<(String, Foreseen)>>;
type Outputs = Arc<BTreeMap<&'static str, Foreseen>>;

/// The last inspection of a stage. Iterations of a loop mostly reuse it.
struct Seen {
    inputs: Inputs,
    settled: bool,
    /// What the machine lacks for it, until that is reported.
    lacking: Vec<Problem>,
    outputs: Outputs,
}

/// What is known of a plan's nodes before they run.
pub struct Foresight<'p> {
    plan: &'p Plan,
    outputs: BTreeMap<NodeIndex, Outputs>,
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
    said: BTreeSet<(String, String)>,
}

impl Findings {
    fn is_new(&mut self, problem: &Problem) -> bool {
        let place = problem.place.as_ref().map(ToString::to_string).unwrap_or_default();
        self.said.insert((place, problem.cause.to_string()))
    }

    fn refuse(&mut self, problems: Vec<Problem>) {
        for problem in problems {
            if self.is_new(&problem) {
                self.problems.push(problem);
            }
        }
    }

    fn note(&mut self, notes: Vec<Problem>) {
        for note in notes {
            if self.is_new(&note) {
                self.notes.push(note);
            }
        }
    }
}

impl<'p> Foresight<'p> {
    /// `is_sure` tells whether a node will run on this machine. Missing hardware or programs are reported
    /// only for such nodes.
    pub fn new(ledger: &Ledger<'p>, store: &Store, is_sure: &dyn Fn(NodeIndex) -> bool) -> Self {
        let plan = ledger.plan();
        let mut foresight = Self { plan, outputs: BTreeMap::new(), findings: Findings::default() };
        let looked = Looked::default();
        let needed = needed(plan, ledger);
        let mut seen: BTreeMap<*const Stage, Seen> = BTreeMap::new();
        for index in plan.order().iter().copied().filter(|index| needed[index.index()]) {
            let stage = &plan.node(index).stage;
            let (inputs, settled) = (foresight.inputs(index), ledger.get(index).is_some());
            let before = seen.remove(&Arc::as_ptr(stage));
            let mut now =
                before.filter(|seen| seen.inputs == inputs && seen.settled == settled).unwrap_or_else(|| {
                    let Outlook { objections, lacks, notes, outputs } =
                        look(ledger, store, &looked, index, &inputs);
                    let mut lacking = Vec::new();
                    if !settled {
                        let at = |found: Vec<Objection>| {
                            found.into_iter().map(|found| problem(plan, stage, found)).collect()
                        };
                        foresight.findings.refuse(at(objections));
                        foresight.findings.note(at(notes));
                        lacking = foresight.lacks(stage, lacks);
                    }
                    Seen { inputs, settled, lacking, outputs: Arc::new(outputs) }
                });
            if !now.lacking.is_empty() && is_sure(index) {
                foresight.findings.refuse(std::mem::take(&mut now.lacking));
            }
            foresight.outputs.insert(index, now.outputs.clone());
            seen.insert(Arc::as_ptr(stage), now);
        }
        foresight
    }

    pub fn into_findings(self) -> Findings {
        self.findings
    }

    /// The expected output of a node.
    pub fn written(&self, node: NodeIndex, port: &str) -> &Foreseen {
        self.outputs.get(&node).and_then(|outputs| outputs.get(port)).unwrap_or(&Foreseen::Nothing)
    }

    /// The expected content of an artifact that a node reads.
    pub(super) fn of(&self, from: &InputSource) -> &Foreseen {
        let (node, port) = match from {
            InputSource::Output { node, port } => (node, port),
            InputSource::Last(nodes) => match nodes.last() {
                Some((node, port)) => (node, port),
                None => return &Foreseen::Nothing,
            },
        };
        self.written(*node, port)
    }

    /// The policy that a node writes.
    pub(super) fn policy_of(&self, node: NodeIndex) -> Option<&Policy> {
        let port = self.plan.node(node).stage.card.output_of_type("policy")?;
        self.written(node, port).policy()
    }

    pub(super) fn policy(&self, from: &InputSource) -> Option<&Policy> {
        self.of(from).policy()
    }

    /// The shape of the model that a node will use. Its policies mostly share one model.
    pub(super) fn uses(&self, index: NodeIndex) -> Uses {
        let node = self.plan.node(index);
        let role = node.stage.card.inputs.iter().find(|(_, role)| role.artifact == "policy");
        let edge = role.and_then(|(role, _)| node.inputs.iter().find(|edge| edge.role == *role));
        match edge.map(|edge| self.policy(&edge.from)) {
            None => Uses::NoModel,
            Some(Some(policy)) => Uses::Model(shape(&policy.config)),
            Some(None) => Uses::UnknownModel,
        }
    }

    fn inputs(&self, index: NodeIndex) -> Inputs {
        let mut inputs = Inputs::new();
        for edge in &self.plan.node(index).inputs {
            let foreseen = self.of(&edge.from).clone();
            inputs.entry(edge.role.clone()).or_default().push((edge.name.clone(), foreseen));
        }
        inputs
    }

    /// What this machine lacks for a stage.
    fn lacks(&self, stage: &Stage, of_kind: Vec<Objection>) -> Vec<Problem> {
        let mut lacks: Vec<_> = of_kind.into_iter().map(|lack| problem(self.plan, stage, lack)).collect();
        let uses = |section| stage.card.uses.contains(&section);
        let mut lack = |path, cause: Failure| {
            let place = self.plan.section(path);
            lacks.push(Problem { stage: Some(stage.name.clone()), subject: Subject::Section, place, cause });
        };
        if uses(Section::Engine)
            && stage.card.command.is_empty()
            && let Err(cause) = self.plan.engine.check_devices()
        {
            lack("engine.devices", cause.into());
        }
        if let Some(server) = self.plan.server.as_ref().filter(|_| uses(Section::Server))
            && let Err(cause) = server.check()
        {
            lack("server", cause.into());
        }
        lacks
    }
}

/// Locates the finding at its parameter, role or section key; at the stage if the run file does not have
/// that.
fn problem(plan: &Plan, stage: &Stage, Objection { about, cause }: Objection) -> Problem {
    let own = about.and_then(|about| plan.place_of(stage, about).or_else(|| plan.section(about)));
    let place = own.or_else(|| plan.place_of(stage, ""));
    Problem { stage: Some(stage.name.clone()), subject: Subject::Stage, place, cause }
}

/// Nodes without a result, and the writers of the policies, scenarios and tools that they read.
fn needed(plan: &Plan, ledger: &Ledger<'_>) -> Vec<bool> {
    let mut needed: Vec<bool> =
        (0..plan.graph.nodes.node_count()).map(|at| ledger.get(NodeIndex::new(at)).is_none()).collect();
    for index in plan.order().iter().rev() {
        if !needed[index.index()] {
            continue;
        }
        let node = plan.node(*index);
        for edge in &node.inputs {
            let artifact = node.stage.card.inputs.get(&edge.role).map(|role| role.artifact.as_str());
            if let Some(writer) =
                edge.from.writer().filter(|_| matches!(artifact, Some("policy" | "scenarios" | "tools")))
            {
                needed[writer.index()] = true;
            }
        }
    }
    needed
}

fn look(ledger: &Ledger<'_>, store: &Store, looked: &Looked, index: NodeIndex, inputs: &Inputs) -> Outlook {
    let plan = ledger.plan();
    let node = plan.node(index);
    let card = &node.stage.card;
    if !card.command.is_empty() {
        return command::look(card);
    }
    let finished = |port: &str| match ledger.get(index)? {
        Completion::Done { outputs, .. } => Some(store.path(outputs.get(port)?)),
        Completion::Skipped => None,
    };
    let iteration = node.iteration.map(|iteration| iteration.number);
    let seed = if card.determinism.draws() { stage_seed(node.stage.seed, &card.kind, iteration) } else { 0 };
    let (params, engine) = (&node.stage.params, &plan.engine);
    let prospect = Prospect { card, params, seed, inputs, engine, finished: &finished, looked };
    registry::find(&card.kind).map(|kind| (kind.look)(&prospect)).unwrap_or_default()
}
