//! The documents: they keep up with the code, the ACL that they give is enough, the examples do what they say.

mod acl;
mod api;
mod examples;
mod readme;
