//! Short lists of things per peer, in one slab that all peers share: bounded in number, made when first needed.

/// No link.
pub(crate) const NONE: u32 = u32::MAX;

/// All links of all lists of one kind.
#[derive(Debug)]
pub(crate) struct Chains<T> {
    links: Vec<Link<T>>,
    free: Vec<u32>,
    most: usize,
}

#[derive(Debug)]
struct Link<T> {
    value: Option<T>,
    next: u32,
}

impl<T> Chains<T> {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            links: Vec::new(),
            free: Vec::new(),
            most,
        }
    }

    /// Whether another one can be added.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.links.len() < self.most
    }

    /// Adds at the end of the list that begins at `head`; `None` when there are as many as there may be.
    pub(crate) fn add(&mut self, head: &mut u32, value: T) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.links.len() < self.most => {
                self.links.push(Link {
                    value: None,
                    next: NONE,
                });
                self.free.reserve(self.links.len() - self.free.len());
                self.links.len() as u32 - 1
            }
            None => return None,
        };
        self.links[index as usize] = Link {
            value: Some(value),
            next: NONE,
        };
        if *head == NONE {
            *head = index;
            return Some(index);
        }
        let mut at = *head;
        while self.links[at as usize].next != NONE {
            at = self.links[at as usize].next;
        }
        self.links[at as usize].next = index;
        Some(index)
    }

    /// The first of the list that begins at `head` which `is` the one.
    pub(crate) fn find(&self, head: u32, is: impl Fn(&T) -> bool) -> Option<u32> {
        let mut at = head;
        while at != NONE {
            let link = &self.links[at as usize];
            if link.value.as_ref().is_some_and(&is) {
                return Some(at);
            }
            at = link.next;
        }
        None
    }

    /// One that is in a list.
    #[inline]
    pub(crate) fn get(&mut self, index: u32) -> Option<&mut T> {
        self.links.get_mut(index as usize)?.value.as_mut()
    }

    /// Takes one out of the list that begins at `head`.
    pub(crate) fn remove(&mut self, head: &mut u32, index: u32) -> Option<T> {
        let next = self.links[index as usize].next;
        if *head == index {
            *head = next;
        } else {
            let mut at = *head;
            while at != NONE {
                let link = &mut self.links[at as usize];
                if link.next == index {
                    link.next = next;
                    break;
                }
                at = link.next;
            }
        }
        self.free.push(index);
        self.links[index as usize].value.take()
    }

    /// How many there are in all lists.
    pub(crate) fn active(&self) -> usize {
        self.links.len() - self.free.len()
    }

    /// How many the list that begins at `head` has.
    pub(crate) fn count(&self, head: u32) -> usize {
        let next = |at: &u32| Some(self.links[*at as usize].next).filter(|next| *next != NONE);
        std::iter::successors(Some(head).filter(|head| *head != NONE), next).count()
    }

    /// Moves the first of a list behind the `turns - 1` that follow it: so many take turns, and the others wait until
    /// one of these is taken out.
    pub(crate) fn rotate(&mut self, head: &mut u32, turns: usize) {
        let first = *head;
        if first == NONE || turns < 2 || self.links[first as usize].next == NONE {
            return;
        }
        *head = self.links[first as usize].next;
        let mut at = *head;
        for _ in 2..turns {
            match self.links[at as usize].next {
                NONE => break,
                next => at = next,
            }
        }
        self.links[first as usize].next = self.links[at as usize].next;
        self.links[at as usize].next = first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_share_their_links_and_keep_their_order() {
        let mut chains = Chains::new(4);
        let (mut one, mut two) = (NONE, NONE);
        let [a, b, c] = [1, 2, 3].map(|n| chains.add(&mut one, n).unwrap());
        assert!(
            chains.add(&mut two, 9).is_some() && chains.add(&mut two, 10).is_none() && !chains.has_room()
        );
        assert_eq!(
            (chains.count(one), chains.count(two), chains.count(NONE)),
            (3, 1, 0)
        );
        chains.rotate(&mut one, 3);
        assert_eq!(one, b);
        assert_eq!(chains.find(one, |n| *n == 1), Some(a));
        assert_eq!(chains.remove(&mut one, c), Some(3));
        assert_eq!(chains.find(one, |n| *n == 3), None);
        assert_eq!(chains.add(&mut two, 10), Some(c));
        assert_eq!(
            (chains.remove(&mut one, b), chains.remove(&mut one, a), one),
            (Some(2), Some(1), NONE)
        );
        assert_eq!(chains.get(a), None);
    }

    #[test]
    fn the_first_few_take_turns_and_the_others_wait() {
        let mut chains = Chains::new(5);
        let mut head = NONE;
        for n in 0..5 {
            chains.add(&mut head, n).unwrap();
        }
        let mut turns = |rounds: usize| -> Vec<i32> {
            let turn = |_| {
                let first = *chains.get(head).unwrap();
                chains.rotate(&mut head, 3);
                first
            };
            (0..rounds).map(turn).collect()
        };
        assert_eq!(turns(7), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(chains.remove(&mut head, 1), Some(1), "it was its turn");
        let order: Vec<i32> = (0..4)
            .map(|_| {
                let first = head;
                chains.remove(&mut head, first).unwrap()
            })
            .collect();
        assert_eq!(order, [2, 0, 3, 4]);
    }
}
