"""What both service levels share: releases, encoding, engines, deferred work and published scores."""
