"""A day's messages: found, checked and counted before a JVM starts; read in Spark, and every row judged once."""
