"""Tests of realtime_service.workers."""
