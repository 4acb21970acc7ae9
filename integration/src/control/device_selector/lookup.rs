//! `device.attributes` and `device.capacity`: maps in which a domain that the device does not have is empty.

use std::any::Any;
use std::collections::BTreeMap;

use cel::ExecutionError;
use cel::common::traits::{Container, Indexer, Sizer};
use cel::common::types::{CelInt, CelMap, CelString, MAP_TYPE, Type};
use cel::common::value::{CowVal, StaticVal, Val};

/// Domain → its names. So `device.attributes["a.example.com"].x` fails for want of `x`, never for want of the
/// domain, and `has(device.attributes["a.example.com"].x)` is simply false.
#[derive(Clone, Debug)]
pub struct Domains(pub BTreeMap<String, CelMap<'static>>);

fn domain(key: &dyn Val) -> Result<&str, ExecutionError> {
    key.downcast_ref::<CelString<'_>>().map(|key| key.inner()).ok_or_else(|| ExecutionError::UnexpectedType {
        got: key.get_type().name().to_owned(),
        want: "string".to_owned(),
    })
}

impl Val for Domains {
    fn get_type(&self) -> &Type {
        <Self as Val>::cel_type()
    }

    fn cel_type() -> &'static Type {
        &MAP_TYPE
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Domains {}

impl Container for Domains {
    fn contains(&self, key: &dyn Val) -> Result<bool, ExecutionError> {
        Ok(self.0.contains_key(domain(key)?))
    }
}

impl Indexer for Domains {
    fn get<'b, 'v>(&'b self, key: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        Ok(match self.0.get(domain(key)?) {
            Some(names) => CowVal::Borrowed(names),
            None => CowVal::owned(CelMap::default()),
        })
    }

    fn steal<'v>(self: Box<Self>, key: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        let mut domains = self.0;
        Ok(Box::new(domains.remove(domain(key)?).unwrap_or_default()))
    }
}

impl Sizer for Domains {
    fn size(&self) -> CelInt {
        CelInt::from(i64::try_from(self.0.len()).unwrap_or(i64::MAX))
    }
}
