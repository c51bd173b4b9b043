//! Which pools the nodes have been seen to serve, and in which eras: a node that was given an older copy of its pool is
//! noticed by whoever remembers more of the pool than the copy does. Clients remember while they run; nodes in their pools.

use parking_lot::{Mutex, RwLock};
use polvo_format::{KnownPool, NodeId, PoolPast};
use polvo_proto::FsError;
use std::collections::BTreeMap;

type NewsHook = Box<dyn Fn(NodeId, KnownPool) + Send + Sync>;

/// What was seen of each node's pool.
#[derive(Default)]
pub struct PoolsSeen {
    known: Mutex<BTreeMap<NodeId, KnownPool>>,
    on_news: RwLock<Option<NewsHook>>,
}

impl PoolsSeen {
    /// Begins with what was remembered of earlier runs; `on_news` is called, one call at a time, with what is new.
    pub fn remember(
        &self,
        earlier: impl IntoIterator<Item = (NodeId, KnownPool)>,
        on_news: impl Fn(NodeId, KnownPool) + Send + Sync + 'static,
    ) {
        *self.on_news.write() = Some(Box::new(on_news));
        self.known.lock().extend(earlier);
    }

    /// A node shows its pool's past.
    ///
    /// # Errors
    /// [`FsError::SetBack`] when a later copy of that pool was seen before.
    pub fn see(&self, node: NodeId, past: &PoolPast) -> Result<(), FsError> {
        let mut all = self.known.lock();
        let before = all.get(&node).copied();
        let now = KnownPool::learn(before, past).map_err(|seen| FsError::SetBack {
            node: node.0,
            seen: seen.number,
            found: past.history.era,
        })?;
        if before != Some(now) {
            all.insert(node, now);
            if let Some(hook) = &*self.on_news.read() {
                hook(node, now);
            }
        }
        Ok(())
    }

    /// What is known of a node's pool, for [`PoolsSeen::see_answer`].
    pub fn known(&self, node: NodeId) -> Option<KnownPool> {
        self.known.lock().get(&node).copied()
    }

    /// As [`PoolsSeen::see`], of an answer; `when_asked`: what was known when the question was sent. An answer may be taken in late
    /// (a process stood still), and what is known by then be of a later incarnation: it says nothing of an older copy.
    ///
    /// # Errors
    /// [`FsError::SetBack`]; `Unreachable` when the incarnation that has answered is over.
    pub fn see_answer(&self, node: NodeId, when_asked: Option<KnownPool>, past: &PoolPast) -> Result<(), FsError> {
        match self.see(node, past) {
            Err(FsError::SetBack { .. }) if KnownPool::learn(when_asked, past).is_ok() => Err(FsError::Unreachable {
                node: node.0,
                why: "it has been started anew since it answered".into(),
            }),
            seen => seen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn what_is_new_is_told_once_and_what_is_older_refused() {
        let seen = PoolsSeen::default();
        let told = Arc::new(Mutex::new(Vec::new()));
        let hook = {
            let told = told.clone();
            move |node: NodeId, known: KnownPool| told.lock().push((node.0, known.era.number))
        };
        let node = NodeId(3);
        let mut past = PoolPast::default();
        past.history.begin(7);
        let copy = past;
        past.history.begin(8);
        let known = KnownPool::learn(None, &past).unwrap();
        seen.remember([(node, known)], hook);
        assert_eq!(seen.see(node, &past), Ok(()));
        assert!(told.lock().is_empty());
        let refused = FsError::SetBack {
            node: 3,
            seen: 2,
            found: 1,
        };
        assert_eq!(seen.see(node, &copy), Err(refused));
        assert_eq!(seen.see(NodeId(4), &copy), Ok(()), "another node's");
        past.history.begin(9);
        assert_eq!(seen.see(node, &past), Ok(()));
        assert_eq!(seen.see(node, &past), Ok(()));
        assert_eq!(*told.lock(), [(4, 1), (3, 3)]);
    }

    #[test]
    fn an_answer_that_is_taken_in_late_is_no_older_copy() {
        let (seen, node) = (PoolsSeen::default(), NodeId(3));
        let mut past = PoolPast::default();
        past.history.begin(7);
        seen.see(node, &past).unwrap();
        let (when_asked, answer) = (seen.known(node), past);
        past.history.begin(8);
        seen.see(node, &past).unwrap();
        let late = seen.see_answer(node, when_asked, &answer);
        assert!(matches!(late, Err(FsError::Unreachable { node: 3, .. })), "{late:?}");
        let asked_now = seen.see_answer(node, seen.known(node), &answer);
        assert!(matches!(asked_now, Err(FsError::SetBack { .. })), "{asked_now:?}");
        assert_eq!(seen.see_answer(node, when_asked, &past), Ok(()));
    }
}
