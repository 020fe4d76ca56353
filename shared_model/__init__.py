"""Shared by both service levels: releases, encoding, engines, deferred work and published scores."""
