//! Reading a file from front to back: some parts are on their way while the caller works on another, so that neither the
//! network nor the caller waits for the other.
//!
//! Nothing is kept beyond that: each part is a read of its own, of the file as it was when that part was fetched. Reads in
//! small steps gain nothing from reading ahead, since to use bytes that were fetched before one would have to ask whether
//! they are still the file's, which takes as long as fetching them.

use crate::io::read::{BATCH_BYTES, BATCHES};
use crate::local_client::LocalClient;
use crate::open::OpenFile;
use polvo_cluster::InFlight;
use polvo_proto::FsError;
use std::ops::Range;

/// A range of a file, part by part.
#[must_use]
pub struct ReadStream<'a> {
    client: &'a LocalClient,
    file: &'a OpenFile,
    /// not asked for yet
    rest: Range<u64>,
    parts: InFlight<'a, Result<Part, FsError>>,
    /// what the caller has got; its memory is used again
    current: Vec<u8>,
}

struct Part {
    /// as long as was asked for
    buffer: Vec<u8>,
    /// bytes of it that there were
    read: usize,
}

impl LocalClient {
    /// Reads a range of a file in parts, with several on their way at a time.
    pub fn stream<'a>(&'a self, file: &'a OpenFile, range: Range<u64>) -> ReadStream<'a> {
        ReadStream {
            client: self,
            file,
            rest: range,
            parts: InFlight::new(),
            current: Vec::new(),
        }
    }
}

impl ReadStream<'_> {
    /// The next bytes; `None` at the end of the range or of the file, whichever comes first.
    ///
    /// # Errors
    /// As [`LocalClient::read`]; the stream is at its end then.
    pub async fn next(&mut self) -> Result<Option<&[u8]>, FsError> {
        let mut used = std::mem::take(&mut self.current);
        while self.parts.len() < BATCHES && !self.rest.is_empty() {
            let at = self.rest.start;
            self.rest.start = self.rest.end.min(at.saturating_add(BATCH_BYTES as u64));
            let (client, file) = (self.client, self.file);
            let mut buffer = std::mem::take(&mut used);
            buffer.resize((self.rest.start - at) as usize, 0);
            self.parts.push(async move {
                let read = client.read(file, at, &mut buffer).await?;
                Ok(Part { buffer, read })
            });
        }
        let mut part = match self.parts.next().await {
            Some(Ok(part)) => part,
            Some(Err(error)) => {
                self.end().await;
                return Err(error);
            }
            None => return Ok(None),
        };
        if part.read < part.buffer.len() {
            self.end().await;
        }
        if part.read == 0 {
            return Ok(None);
        }
        part.buffer.truncate(part.read);
        self.current = part.buffer;
        Ok(Some(&self.current))
    }

    /// Nothing more is asked for; what was comes to nothing.
    async fn end(&mut self) {
        self.rest = 0..0;
        while self.parts.next().await.is_some() {}
    }
}
