"""Tests of realtime_service.routing."""
