"""Files whose text is translated while their structure stays."""
