//! Replies of language models, kept as the stage's finished rows.

use std::collections::BTreeMap;

use super::{Context, Rows};
use crate::{
    error::{At, Result},
    hash::Digest,
    judge::ReplyCache,
};

pub struct Replies<'a> {
    known: BTreeMap<String, Vec<u8>>,
    rows: &'a dyn Rows,
}

impl<'a> Replies<'a> {
    /// With those of interrupted stages.
    pub fn of(context: &'a Context) -> Result<Self> {
        Ok(Self { known: context.finished_rows()?, rows: &*context.rows })
    }
}

impl ReplyCache for Replies<'_> {
    fn get(&self, question: &Digest) -> Option<String> {
        String::from_utf8(self.known.get(&question.to_string())?.clone()).ok()
    }

    fn put(&self, question: &Digest, reply: &str) -> Result<()> {
        self.rows
            .record(&question.to_string(), reply.as_bytes())
            .at(|| "a reply of the language model".into())
    }
}
