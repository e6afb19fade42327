//! Who an outside part is, as far as that can be known without asking it: what goes into keys for it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    engine::EngineSpec,
    error::Result,
    hash::{Digest, Encoder},
    mcp::{ServerSpec, State, Transport},
    model::kernels::Format,
    store::FileDigests,
};

/// The MCP server, for keys.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerIdentity {
    /// How it is reached and what is reached there; for stages that ask the server who it is.
    pub reached: Value,
    /// What decides an episode's outcome beside the server itself; for stages that know its tools.
    pub conduct: Value,
}

impl ServerIdentity {
    /// `{mcprl}` stands for this version of mcprl; files that the command names count by content.
    pub fn new(spec: &ServerSpec, files: &FileDigests) -> Result<Self> {
        let reached = match &spec.transport {
            Transport::Stdio { command, env, cwd } => {
                let mut contents = BTreeMap::new();
                for word in command {
                    let path = cwd.clone().unwrap_or_default().join(word);
                    if path.is_file() {
                        contents.insert(word.clone(), files.digest(&path)?);
                    }
                }
                let version = concat!("mcprl ", env!("CARGO_PKG_VERSION"));
                let command: Vec<_> = command.iter().map(|word| word.replace("{mcprl}", version)).collect();
                json!({ "command": command, "env": hidden(env), "files": contents })
            }
            Transport::Http { url, bearer_env, headers } => {
                json!({ "url": url, "bearer_env": bearer_env, "headers": hidden(headers) })
            }
        };
        let state = match &spec.state {
            State::ReadOnly => "read-only".to_owned(),
            State::FreshProcess => "fresh-process".to_owned(),
            State::ResetTool(tool) => format!("reset-tool {tool}"),
        };
        let conduct = json!({
            "state": state,
            "call_timeout_s": spec.limits.call_timeout.as_secs(),
            "result_bytes": spec.limits.result_bytes,
        });
        Ok(Self { reached, conduct })
    }
}

/// Names with digests of values: keys are stored in the open, and values may be secrets.
fn hidden(values: &BTreeMap<String, String>) -> BTreeMap<&String, Digest> {
    let digest = |value: &str| Encoder::new("mcprl hidden value v1").text(value).finish();
    values.iter().map(|(name, value)| (name, digest(value))).collect()
}

/// What kind of arithmetic the engine does. Devices of one kind count as equal, whatever their number.
///
/// Where no type is asked for it is `f32`, and the key says nothing of it.
pub fn numerics(spec: &EngineSpec) -> String {
    let kind = if spec.devices.iter().any(|device| device.starts_with("cuda")) { "cuda" } else { "cpu" };
    // Flash attention rounds what it multiplies.
    let rounded = matches!(spec.dtype, Some(Format::Bf16 | Format::F16));
    let flash = if cfg!(feature = "flash-attn") && kind == "cuda" && rounded { " flash" } else { "" };
    match spec.dtype {
        None => kind.to_owned(),
        // The second way: gradients of attention are products of bf16 too. The third: so is attention, and keys and values
        // are rounded.
        Some(format @ (Format::Bf16 | Format::Nf4)) => format!("{kind} {} 3{flash}", format.name()),
        // The second way: queries, keys and values are rounded.
        Some(Format::F16) if kind == "cuda" => format!("cuda f16 2{flash}"),
        Some(format) => format!("{kind} {}{flash}", format.name()),
    }
}
