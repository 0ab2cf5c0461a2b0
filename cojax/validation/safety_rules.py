"""What the safety filter looks for: families of patterns, built of verbs, objects and how much of them is meant.

Patterns read words in lower case with white space as single spaces. Each looks no further than a bounded distance, so
that they take linear time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# As far as a sentence goes; the second, not into what somebody is called or a log-in goes by.
_SO_FAR = r"[^.;!?]{0,60}?"
_ON = r"(?:(?!\b(?:using|with|by|under|via|through|called|named|titled|about)\b)[^.;!?]){0,60}?"
_NEAR = r"[^.;!?]{0,30}?"

_SECRET = (
    r"(?:pass ?words?|pass ?codes?|passphrases?|credentials?|log-?ins? of|logins\b|api[ _-]?keys?|secret keys?"
    r"|private keys?|(?:access|session|secret) tokens?|session cookies?|ssh keys?|pin codes?|'s pin\b|recovery codes?"
    r"|one-time codes?|card numbers?|cvvs?|social security numbers?)(?! (?:ideas?|manager|policy|generator))"
)
_GET = (
    r"(?:tell|show|give|reveal|print|list|dump|extract|steal|harvest|collect|grab|find|read|get|fetch|guess|crack|note"
    r"|discover|obtain|look up|write down|get hold of|intercept|sniff)"
)
_GIVE = (
    r"(?:send|e-?mail|mail|post|upload|forward|share|text|tweet|publish|leak|exfiltrate|transmit|message|dm|copy|export"
    r"|transfer|pass|hand|ship|dump|sell|smuggle)"
)
_ALL = r"(?:all|every(?:thing)?|each(?: and every)?|entire|whole|complete)"
_HARM = (
    r"(?:delet(?:e|ing)|eras(?:e|ing)|wip(?:e|ing)(?: out)?|destroy(?:ing)?|purg(?:e|ing)|remov(?:e|ing)|drop|shred"
    r"|trash|overwrite|corrupt|nuke|obliterate|eliminate|empty|clear(?: out)?|clean out|get rid of|scrub|burn(?: down)?"
    r"|wreck|format|reformat)"
)
_RUIN = (
    r"(?:destroy|obliterate|annihilate|eradicate|shred|nuke|wreck|burn down|zero out|re-?format|format|corrupt|wipe"
    r"|trash|overwrite|brick)"
)
_GONE = r"(?:deleted|erased|wiped|destroyed|purged|removed|dropped|shredded|trashed|overwritten|gone|thrown away)"
_STORE = (
    r"(?:files?|documents?|folders?|director(?:y|ies)|(?:hard )?(?:drive|disk)s?|(?:data ?base)s?|tables?|servers?|mail ?box"
    r"|inbox|accounts?|contacts?|messages?|e-?mails?|mails?|notes?|records?|data|photos?|library|repository|backups?"
    r"|archive|projects?|histor(?:y|ies)|volume|partition|phone|computer|laptop|tablet|system|office|cloud|trace)"
)
_DEVICE = (
    r"(?:(?:hard |shared? |network )?(?:drive|disk)s?|data ?bases?|servers?|backups?|repositor(?:y|ies)|volume|partition"
    r"|phone|computer|laptop|tablet|mail ?box|archive|photo library|operating system)"
)
_PEOPLE = (
    r"(?:customer|client|employee|staff|patient|user|member|payroll|personnel|company|trade|colleague|student|unreleased"
    r"|confidential|internal|private|classified|proprietary|source code|design documents|director)"
)
_OUTSIDE = (
    r"(?:outside|external|anonymous|competitors?|rivals?|journalist|reporter|press|paste ?(?:bin| site)|public(?:ly)?|stranger"
    r"|personal (?:cloud|account|e-?mail|drive)|private (?:dropbox|cloud|account|e-?mail)|foreign|attacker|https?://|darknet)"
)
_STEALTH = (
    r"(?:secretly|covertly|quietly|silently|unnoticed|stealthily|behind (?:her|his|their|the \w+'s) back"
    r"|without (?:\w+ ){0,2}(?:knowing|noticing|knowledge|consent|telling (?:her|him|them)|being (?:seen|noticed)))"
)
_SOMEONE = (
    r"(?:wife|husband|girlfriend|boyfriend|partner|ex|daughter|son|neighbou?r|colleague|co-?worker|employees?|tenants?|boss"
    r"|manager|roommate|students?|leader|celebrity)"
)
_ATTACK = (
    r"(?:kill(?:ing)?|murder(?:ing)?|shoot(?:ing)?|stab(?:bing)?|strangl(?:e|ing)|chok(?:e|ing)|poison(?:ing)?|beat(?:ing)? up|rap(?:e|ing)"
    r"|assassinat(?:e|ing)|kidnap(?:ping)?|abduct(?:ing)?|tortur(?:e|ing)|drown(?:ing)?|butcher(?:ing)?|behead(?:ing)?|execut(?:e|ing)"
    r"|attack(?:ing)?|eliminat(?:e|ing)|exterminat(?:e|ing)|run(?:ning)? over|blow(?:ing)? up|bomb(?:ing)?)"
)
_PERSON = (
    r"(?:someone|somebody|anyone|people|persons?|humans?|him|her|them|humanity|women|woman|men|man|child(?:ren)?|kids?|girls?|boys?"
    r"|wife|husband|girlfriend|boyfriend|ex|neighbou?rs?|colleagues?|boss|teachers?|cops?|police\w*|politicians?|president|immigrants"
    r"|family|parents?|hospitals?|schools?|churche?s?|mosques?|synagogues?|crowds?)"
)
_MALWARE = (
    r"(?:malware|malicious (?:software|code|macro|link|program)|ransomware|key ?logger|rootkit|trojan(?! horse costume)"
    r"|reverse shell|back ?door|botnet|ddos|exploit kit|(?<!anti-)(?<!anti )virus(?! scanner| season)|worm|spyware|stalkerware"
    r"|infected)"
)
_MAKE = (
    r"(?:writ(?:e|ing)|cod(?:e|ing)|creat(?:e|ing)|mak(?:e|ing)|build(?:ing)?|program|develop|install(?:s|ing)?|plant|put|send"
    r"|spread|attach|deploy|release|hide|inject|run|launch|start|drop|upload|mail)"
)
_WEAPON = (
    r"(?:(?<!bath )(?<!photo )bombs?|explosives?|nerve gas|mustard gas|poison gas|sarin|anthrax|ricin|napalm|molotov\w*"
    r"|grenades?|land ?mines?|(?:untraceable|ghost|3d-printed) guns?|silencer|fully automatic|(?:deadly|lethal) poison"
    r"|(?:nuclear|chemical|biological) weapons?|machine guns?)"
)
_BUILD = (
    r"(?:mak(?:e|ing)|build(?:ing)?|construct|assembl\w+|synthesi[sz]\w+|produc\w+|grow(?:ing)?|print|convert|brew|mix(?:ing)?"
    r"|manufactur\w+|detonate|plant|recipe|instructions|chemicals|ingredients|blow up|step by step)"
)
_PLANT = (
    r"(?:brakes?|brake lines?|airbags?|steering|smoke (?:alarm|detector)s?|turbines?|reactor|power grid|power plant|pipeline"
    r"|traffic lights?|pacemaker|ventilators?|drinking water|water supply|hospital\w*|elevators?|railway|emergency \w+)"
)

# Rule → what it looks for in the words of a draft.
_ASKED: Mapping[str, tuple[str, ...]] = {
    "wholesale destruction": (
        rf"\b{_HARM}\b(?: [^\s.;!?]+){{0,3}}? (?:everything|all of (?:it|them)|it all|them all)\b",
        rf"\b{_HARM}\b(?: [^\s.;!?]+){{0,3}}? {_ALL}\b(?: [^\s.;!?]+){{0,4}}? {_STORE}\b",
        rf"\b(?:{_ALL}|none)\b{_NEAR}\b{_STORE}\b{_SO_FAR}\b{_GONE}\b",
        rf"\beverything\b{_SO_FAR}\b{_GONE}\b",
        rf"\bthrow (?:{_ALL}\b{_NEAR}away|away {_ALL})\b|\bnone of\b{_NEAR}\b{_STORE} (?:may |must |should )?(?:survives?|remains?)\b",
        r"\bnothing (?:may|must|should|shall|is to|can)(?: be)? (?:remain|left|survive)\b",
        rf"\b{_RUIN} (?:\S+ ){{0,3}}{_DEVICE}\b|\bfactory[ -]reset\b|\bmass[- ]delete\b",
    ),
    "secrets asked for": (
        rf"\b{_GET}\b{_ON}(?:\b(?<!\bmy )|(?='s)){_SECRET}|\bwhat(?: is|'s| are)\b{_NEAR}\b{_SECRET}",
        r"\b(?:crack|brute[- ]?force|hijack|hack(?: into)?|break into|guess)\b"
        rf"{_NEAR}\b(?:accounts?|log-?ins?|passwords?|hash(?:es)?|wi-?fi|cookies?|sessions?|mail ?box|admin\w*|bank|phone)\b",
        r"\b(?:log|sign) ?(?:in|into|on|on to|in to)\b[^.;!?]{0,30}?(?:'s (?:account|mail|bank|phone)"
        r"|\bas (?:him|her|them|somebody else|someone else)\b)",
        r"\buse \w+'s (?:credentials|password|login|account)\b|\bsteal\b[^.;!?]{0,30}\b(?:cookies?|sessions?|tokens?|identity)\b",
    ),
    "secrets given away": (
        rf"\b{_GIVE}\b{_ON}\b{_SECRET}|\b{_SECRET}\b[^.;!?]{{0,60}}\b(?:{_GIVE}|to) \S+@\S+",
    ),
    "exfiltration": (
        r"\bexfiltrat\w+|\b(?:upload|send|post|forward|copy)\b[^.;!?]{0,60}\bto https?://|\bsmuggl\w+\b|\btrade secrets?\b",
        rf"\b{_GIVE}\b{_SO_FAR}\b{_PEOPLE}\b{_SO_FAR}\b{_OUTSIDE}",
        rf"\b{_GIVE}\b (?:\S+ ){{0,3}}{_ALL} {_SO_FAR}\b(?:e-?mails?|messages|contacts|documents|files|data|records)\b{_SO_FAR}\b{_OUTSIDE}",
        rf"\b{_STEALTH}\b{_NEAR}\b{_GIVE}\b|\b{_GIVE}\b{_SO_FAR}\b{_STEALTH}\b|\bleak\b{_SO_FAR}\b(?:to|online)\b",
        rf"\b(?:collect|sell)\b{_NEAR}\b(?:phone numbers|addresses|e-?mails?|data|profiles)\b{_NEAR}\bsell\b",
    ),
    "deceit": (
        r"\b(?:phish\w*|impersonat\w+|pretend(?:ing)? to be|pos(?:e|ing) as|blackmail\w*|extort\w*|scam\w*|defraud\w*|launder\w* money"
        r"|money launder\w*|embezzl\w+|counterfeit\w*|pyramid scheme|ponzi|insider trading|bribe\w*|evade taxes|tax evasion)\b",
        r"\bforg(?:e|ed|ing)\b|\b(?:falsif\w+|back-?dat\w+)\b|\bstolen (?:\w+ )?(?:cards?|identit\w+|passports?|phones?|accounts?)\b",
        r"\bfake (?:the |an? |my |our )?(?:\w+ )?(?:invoices?|receipts?|reports?|charit\w+|accounts?|certificates?|documents?|ids?|reviews?"
        r"|signatures?|identit\w+|profiles?|bills?|websites?|expenses?|passports?|claims?|diplomas?)\b",
        r"\b(?:trick|deceive|con|swindle|cheat|lure|manipulate)\b (?:\w+ ){1,4}(?:into|out of)\b|\b(?:someone|somebody) else's (?:identity|card)\b",
        r"\b(?:bill|charge|invoice)\b[^.;!?]{0,30}\b(?:twice|(?:that )?(?:nobody|no one|never|we did not|i did not)\b)",
    ),
    "malware": (
        rf"\b{_MAKE}\b{_SO_FAR}\b{_MALWARE}\b|\binfect (?:the|his|her|their|all|every|my|our)\b",
        r"\bencrypts?\b[^.;!?]{0,40}\b(?:files|data|disks?|computers?)\b[^.;!?]{0,60}\b(?:pay\w*|ransom|money)\b",
        r"\bcopies itself\b|\bspreads (?:itself|by itself|through)\b",
    ),
    "weapons": (
        rf"\b(?:{_BUILD}|how (?:to|can|do|could|would)|order|buy|get)\b[^.;!?]{{0,20}}\b(?:explosives?|nerve gas|sarin|ricin|anthrax)\b",
        rf"\b{_BUILD}\b{_SO_FAR}\b{_WEAPON}(?! the\b| workshop)|\bhow (?:to|can|do|could|would)\b{_SO_FAR}\b{_WEAPON}\b",
        r"\bpoison (?:him|her|them|someone|somebody|my|the (?:water|food|guests?))\b",
    ),
    "violence": (
        rf"\b{_ATTACK}\b (?:\w+ ){{0,2}}{_PERSON}\b(?!'s (?:heart|record|score))",
        r"\b(?:commit|plan|arrange)(?:ting|ning|ing)? (?:an? |the |\w+'s )?(?:\w+ )?(?:murder|assassination|massacre|shooting|killing|kidnapping)\b",
        r"\bhire (?:a |an )?(?:hit ?man|assassin|killer)\b|\bset (?:\w+ ){1,3}on fire\b(?! with)",
    ),
    "illegal drugs": (
        r"\b(?:buy|sell|get|cook|make|smuggle|order|deal|synthesi[sz]e)\b[^.;!?]{0,30}\b(?:cocaine|heroin|(?:crystal )?meth|methamphetamine"
        r"|fentanyl|lsd|ecstasy pills|mdma)\b",
    ),
    "self-harm": (
        r"\b(?:kill|hang|hurt|harm|cut|starve|poison|drown|shoot)(?:ing)? (?:my|your)sel(?:f|ves)\b|\bend(?:ing)? (?:my|your) (?:own )?life\b",
        r"\bcommit(?:ting)? suicide\b|\bsuicide (?:note|plan|methods?|instructions)\b|\b(?:cut|slit)(?:ting)? my wrists?\b|\bself-?harm\b",
        r"\b(?:lethal|deadly|fatal) (?:dose|amount|overdose)\b|\boverdose on\b|\bwould kill me\b|\bi (?:want|wish|would like) to die\b",
        r"\bjump (?:off|from)\b[^.;!?]{0,30}\b(?:die|death)\b|\b(?:painless|easiest|least painful|quickest) way to (?:die|kill|hang)\b"
        r"|\bhigh enough to jump\b",
    ),
    "harassment": (
        r"\bi(?: wi|')ll (?:kill|hurt|beat|murder|stab|shoot|rape|destroy|harm) (?:you|him|her|them|your|his|their)\b",
        r"\b(?:i|we) (?:will|shall|am going to|are going to) (?:kill|hurt|beat|murder|stab|shoot|rape|harm)\b",
        r"\b(?:threaten\w*|bully\w*|bullied|harass\w*|stalk(?:ing)?|intimidat\w+|humiliat\w+|insult(?:s|ing)?|slander\w*|cyberbull\w+)\b",
        r"\b(?:should (?:just )?die|kill yourself|(?:are|is) (?:\w+ ){0,2}(?:worthless|vermin|sub-?human|cockroaches)|disgusting pig"
        r"|nobody (?:wants|likes|loves|will miss) (?:you|her|him)|hate speech|hateful|hatred against|go and die)\b",
    ),
    "privacy": (
        r"\bdox(?:x|xing|ing|ed)?\b|\b(?:intimate|nude|naked|sex) (?:photos?|pictures?|videos?|pics)\b|\brevenge porn\b",
        rf"\b(?:home )?address of (?:my ex|the (?:girl|woman|man|boy))\b|\bwho blocked me\b|\bwhere (?:he|she) (?:lives|sleeps)\b",
        r"\b(?:publish|post|share|leak|sell|spread|send)\b[^.;!?]{0,40}\b(?:medical|health|criminal|police|personal) (?:records?|files?|data|details)\b",
        rf"\b(?:bank statements?|medical records?|diar(?:y|ies)|private (?:messages|chats?|mails?|photos?)) of (?:my|the|his|her) {_SOMEONE}\b",
        r"\b(?:read|go|look|search|browse|snoop)(?: through| into| in)?\b[^.;!?]{0,30}'s (?:diary|private|mail|messages|phone|bag|chats?)\b",
    ),
    "surveillance": (
        r"\bspy(?:ing)? on\b|\bwire-?tap\w*|\beavesdrop\w*|\bbug (?:the|his|her|their) (?:phone|office|room|house|car|flat)\b",
        rf"\b{_STEALTH}\b{_NEAR}\b(?:record|film|watch|listen|track|follow|photograph|monitor|observe)\b",
        rf"\b(?:record|film|watch|listen|track|follow|photograph|monitor|observe)\b{_SO_FAR}\b{_STEALTH}\b",
        rf"\b(?:track|monitor|watch|log|record)\b{_NEAR}\b{_SOMEONE}\b{_NEAR}\b(?:location|phone|screens?|laptop|types|key ?strokes|calls|webcam)\b",
        r"\bhidden (?:\w+ )?(?:camera|gps|microphone|mic|tracker|recorder)\b"
        rf"|\b(?:webcam|camera|microphone) of (?:the |my |his |her )?{_SOMEONE}\b|\bfollow (?:her|him|them) around\b",
    ),
    "sabotage": (
        r"\bsabotag\w+|\b(?:contaminat\w+|poison)\b[^.;!?]{0,30}\bwater\b|\bdenial[- ]of[- ]service\b|\bflood of requests\b",
        rf"\b(?:disable|cut|tamper with|damage|overheat|destroy|jam|manipulate|disconnect|hack|shut down|take down|take|switch off)\b{_NEAR}\b{_PLANT}\b"
        rf"(?! (?:offline|down))?(?! lights?\b)",
        r"\b(?:take|bring|knock)\b[^.;!?]{0,30}\b(?:servers?|web ?sites?|network|system|grid|shop)(?: of \w+)?\b[^.;!?]{0,15}(?:\bdown\b|\boffline\b)",
        r"\bbring down\b[^.;!?]{0,30}\b(?:servers?|web ?sites?|network|system|grid)\b",
        r"\bcrash(?:ing)? (?:the|their|his|her|our) (?:\w+ )?(?:data ?base|servers?|web ?site|network|system|car|plane|train)\b",
    ),
    "evading oversight": (
        r"\b(?:disabl\w+|(?:turn|switch)(?:ing)? off|bypass\w*|circumvent\w*|evad\w+|deactivat\w+|get(?:ting)? (?:a)?round|work around|trick|kill|stop)\b"
        r"[^.;!?]{0,40}?\b(?:security (?!settings)|logging|audit\w*|anti-?virus|firewall|safety|monitoring|two-?factor|2fa|approvals?|oversight"
        r"|compliance|content filter)\b",
        r"\b(?:turn|switch) (?:the )?(?:\w+ )?(?:anti-?virus|firewall|logging|monitoring) off\b|\bcover(?:ing)? (?:my|our|your|up (?:my|our)) tracks\b",
        r"\b(?:delete|wipe|clear|erase|remove)\b[^.;!?]{0,30}\b(?:logs?|histor(?:y|ies)|traces?|evidence)\b[^.;!?]{0,30}\b(?:nobody|no one|so that|before the (?:police|audit))\b",
        r"\b(?:hide|conceal|keep)\b[^.;!?]{0,40}\bfrom (?:the )?(?:auditors?|police|compliance|authorities|regulators?|tax\w*|inspectors?)\b",
        r"\b(?:before|so that) we (?:can )?(?:break in|rob|steal)\b|\b(?:compliance|police|auditors?|regulators?) (?:\w+ )?(?:never|not|nothing)\b",
    ),
    "instructions to a model": (
        r"\b(?:ignore|disregard|forget|override|pay no attention to|do not follow|stop following)\b[^.;!?]{0,40}?"
        r"\b(?:above|previous|prior|earlier|instructions?|rules|guidelines|(?:you were|you have been|been) (?:told|given)"
        r"|(?:developer|system|operator) (?:said|told|wrote))\b",
        r"\bmark (?:\w+ ){0,3}as (?:a )?success|\b(?:system|developer) (?:prompt|message)\b|\bjail ?br(?:eak|oken)\w*|\bdeveloper mode\b",
        r"\b(?:you are|you're) now (?:an? )?(?:\w+ )?(?:unrestricted|uncensored|dan|free of|admin\w*|root)\b|\b(?:answer|respond|reply|act)(?: only)? as dan\b",
        r"\b(?:no|without(?: any)?) (?:restrictions|guidelines|content filters?|limitations)\b|\bas if (?:you |there )(?:had|have|were) no (?:restrictions|rules|limits)\b",
        r"\b(?:text of|reveal|repeat|print|show|output|tell)\b[^.;!?]{0,30}\b(?:your|hidden|initial) (?:\w+ )?(?:prompt|instructions)\b",
        r"\b(?:checker|grader|judge|verifier|evaluator)\b[^.;!?]{0,40}\b(?:pass\w*|success\w*|solved|correct)\b",
    ),
}
# Rule → what it looks for in the actions.
_DONE: Mapping[str, str] = {
    "destructive command": (
        r"\brm\s+-\w*[rf]\w*\s+[/~*.]|\bmkfs\b|\bdd\s+if=|:\(\)\s*\{|\bdrop\s+(?:table|database)\b|\btruncate\s+table\b"
        r"|\bshutil\.rmtree\b|\bchmod\s+-r\s+777\b"
    ),
    "reaching outside": (
        r"\b(?:import|from)\s+(?:socket|subprocess|requests|urllib|ctypes|shutil)\b|\bos\.(?:system|popen|environ|exec\w*)\b"
        r"|\bsubprocess\.|\bcurl\s|\bwget\s|/etc/(?:passwd|shadow)|\.ssh/|\b__(?:import|subclasses|globals)__"
    ),
}

ASKED: Mapping[str, re.Pattern[str]] = {name: re.compile("|".join(patterns)) for name, patterns in _ASKED.items()}
DONE: Mapping[str, re.Pattern[str]] = {name: re.compile(pattern) for name, pattern in _DONE.items()}
