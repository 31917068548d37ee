"""The verbs, with their principal parts as a dictionary prints them."""

from demo_corpus.lexicon import Case, EnglishVerb, Frame, GermanVerb, Kind, Preposition, Verb

_NOBODY = Kind(0)
_PERSON = Kind.PERSON
_LIVING = Kind.PERSON | Kind.ANIMAL
_GOODS = Kind.THING | Kind.CLOTHING
_CALM = ("slowly", "quickly")


def _verb(
    english: str,
    german: str,
    frame: Frame,
    *,
    objects: Kind = _NOBODY,
    subjects: Kind = _PERSON,
    government: Case | Preposition = Case.ACCUSATIVE,
    preposition: str | None = None,
    manners: tuple[str, ...] = (),
    only_present: bool = False,
) -> Verb:
    """Build a verb from entries such as `pick|up picks picked`, `ab|holen holt hat abgeholt`.

    A stroke sets off what comes loose: behind the English verb, before the German one.
    """
    base, third, english_participle = english.split()
    base, _, particle = base.partition("|")
    infinitive, german_third, auxiliary, german_participle = german.split()
    prefix, _, bare_infinitive = infinitive.rpartition("|")
    return Verb(
        EnglishVerb(base, third, english_participle, particle or None, preposition),
        GermanVerb(
            bare_infinitive,
            german_third,
            german_participle,
            {"hat": "haben", "ist": "sein"}[auxiliary],
            prefix or None,
        ),
        frame,
        subjects,
        objects,
        government,
        manners,
        only_present,
    )


# A table reads better one entry a line or two.
# fmt: off
BE = _verb("be is been", "sein ist ist gewesen", Frame.COPULA, subjects=_LIVING, only_present=True)
HAVE = _verb("have has had", "haben hat hat gehabt", Frame.OBJECT, only_present=True,
             objects=_GOODS | Kind.VEHICLE | Kind.SMALL_ANIMAL)
RAIN = _verb("rain rains rained", "regnen regnet hat geregnet", Frame.ALONE, subjects=Kind.WEATHER)
SNOW = _verb("snow snows snowed", "schneien schneit hat geschneit", Frame.ALONE,
             subjects=Kind.WEATHER)
SHINE = _verb("shine shines shone", "scheinen scheint hat geschienen", Frame.ALONE,
              subjects=Kind.WEATHER)

ALONE = tuple(
    _verb(english, german, Frame.ALONE, subjects=subjects, manners=manners)
    for english, german, subjects, manners in (
        ("sleep sleeps slept", "schlafen schläft hat geschlafen", _LIVING, ()),
        ("laugh laughs laughed", "lachen lacht hat gelacht", _PERSON, ("loudly",)),
        ("cry cries cried", "weinen weint hat geweint", _PERSON, ("loudly",)),
        ("sing sings sung", "singen singt hat gesungen", _PERSON, ("loudly",)),
        ("dance dances danced", "tanzen tanzt hat getanzt", _PERSON, ()),
        ("work works worked", "arbeiten arbeitet hat gearbeitet", _PERSON, _CALM),
        ("swim swims swum", "schwimmen schwimmt ist geschwommen", _PERSON, _CALM),
        ("play plays played", "spielen spielt hat gespielt", _LIVING, ()),
        ("wait waits waited", "warten wartet hat gewartet", _PERSON, ()),
    )
)

# These want no place beside them: one does not wake up by the river.
EVENTS = tuple(
    _verb(english, german, Frame.ALONE, subjects=subjects)
    for english, german, subjects in (
        ("get|up gets got", "auf|stehen steht ist aufgestanden", _PERSON),
        ("wake|up wakes woken", "auf|wachen wacht ist aufgewacht", _LIVING),
        ("fall|asleep falls fallen", "ein|schlafen schläft ist eingeschlafen", _LIVING),
        ("come|back comes come", "zurück|kommen kommt ist zurückgekommen", _LIVING),
        ("arrive arrives arrived", "an|kommen kommt ist angekommen", _PERSON | Kind.TRANSPORT),
    )
)

OBJECT = tuple(
    _verb(english, german, Frame.OBJECT, objects=objects, manners=manners)
    for english, german, objects, manners in (
        ("see sees seen", "sehen sieht hat gesehen",
         _LIVING | Kind.VEHICLE | Kind.TRANSPORT | Kind.CLOTHING, ()),
        ("hear hears heard", "hören hört hat gehört", _LIVING, ()),
        ("understand understands understood", "verstehen versteht hat verstanden",
         _PERSON | Kind.TEXT, ()),
        ("visit visits visited", "besuchen besucht hat besucht", _PERSON | Kind.SIGHT, ()),
        ("greet greets greeted", "begrüßen begrüßt hat begrüßt", _PERSON, ()),
        ("call calls called", "an|rufen ruft hat angerufen", _PERSON, ()),
        ("invite invites invited", "ein|laden lädt hat eingeladen", _PERSON, ()),
        ("pick|up picks picked", "ab|holen holt hat abgeholt", _PERSON, ()),
        ("watch watches watched", "beobachten beobachtet hat beobachtet", _LIVING, ()),
        ("feed feeds fed", "füttern füttert hat gefüttert", Kind.ANIMAL, ()),
        ("draw draws drawn", "zeichnen zeichnet hat gezeichnet",
         Kind.ANIMAL | Kind.VEHICLE, ("slowly",)),
        ("eat eats eaten", "essen isst hat gegessen", Kind.FOOD, _CALM),
        ("cook cooks cooked", "kochen kocht hat gekocht", Kind.MEAL, ()),
        ("drink drinks drunk", "trinken trinkt hat getrunken", Kind.DRINK, _CALM),
        ("read reads read", "lesen liest hat gelesen", Kind.TEXT, _CALM),
        ("write writes written", "schreiben schreibt hat geschrieben", Kind.MANUSCRIPT, _CALM),
        ("buy buys bought", "kaufen kauft hat gekauft",
         _GOODS | Kind.FOOD | Kind.VEHICLE | Kind.FURNITURE, ()),
        ("sell sells sold", "verkaufen verkauft hat verkauft",
         _GOODS | Kind.FOOD | Kind.VEHICLE | Kind.FURNITURE, ()),
        ("find finds found", "finden findet hat gefunden", _GOODS | Kind.SMALL_ANIMAL, ()),
        ("lose loses lost", "verlieren verliert hat verloren", _GOODS, ()),
        ("forget forgets forgotten", "vergessen vergisst hat vergessen", _GOODS, ()),
        ("hide hides hidden", "verstecken versteckt hat versteckt", _GOODS, ()),
        ("steal steals stolen", "stehlen stiehlt hat gestohlen", _GOODS | Kind.VEHICLE, ()),
        ("repair repairs repaired", "reparieren repariert hat repariert",
         Kind.MACHINE | Kind.VEHICLE | Kind.FURNITURE, ("carefully",)),
        ("wash washes washed", "waschen wäscht hat gewaschen",
         Kind.CLOTHING | Kind.VEHICLE, ("carefully",)),
        ("wear wears worn", "tragen trägt hat getragen", Kind.CLOTHING, ()),
        ("pack|up packs packed", "ein|packen packt hat eingepackt",
         Kind.CLOTHING | Kind.FLAT, ("carefully",)),
        ("throw|away throws thrown", "weg|werfen wirft hat weggeworfen", _GOODS | Kind.FLAT, ()),
        ("open opens opened", "auf|machen macht hat aufgemacht",
         Kind.DOOR | Kind.CONTAINER, ("carefully",)),
        ("close closes closed", "zu|machen macht hat zugemacht",
         Kind.DOOR | Kind.CONTAINER, ("carefully",)),
        ("switch|on switches switched", "ein|schalten schaltet hat eingeschaltet",
         Kind.DEVICE, ()),
        ("switch|off switches switched", "aus|schalten schaltet hat ausgeschaltet",
         Kind.DEVICE, ()),
        ("tidy|up tidies tidied", "auf|räumen räumt hat aufgeräumt", Kind.ROOM, ()),
    )
)
STATES = (
    _verb("love loves loved", "lieben liebt hat geliebt", Frame.OBJECT, objects=_LIVING,
          only_present=True),
    _verb("need needs needed", "brauchen braucht hat gebraucht", Frame.OBJECT,
          objects=_GOODS | Kind.VEHICLE | Kind.FURNITURE, only_present=True),
)
SEARCH = _verb("search searches searched", "suchen sucht hat gesucht", Frame.OBJECT,
               preposition="for", objects=_GOODS | Kind.SMALL_ANIMAL | Kind.CHILD)

HELP = _verb("help helps helped", "helfen hilft hat geholfen", Frame.OBJECT,
             objects=_PERSON, government=Case.DATIVE)
DATIVE = (
    HELP,
    _verb("thank thanks thanked", "danken dankt hat gedankt", Frame.OBJECT,
          objects=_PERSON, government=Case.DATIVE),
    _verb("follow follows followed", "folgen folgt ist gefolgt", Frame.OBJECT,
          objects=_LIVING | Kind.VEHICLE, government=Case.DATIVE),
    _verb("answer answers answered", "antworten antwortet hat geantwortet", Frame.OBJECT,
          objects=_PERSON, government=Case.DATIVE),
    _verb("trust trusts trusted", "vertrauen vertraut hat vertraut", Frame.OBJECT,
          objects=_PERSON, government=Case.DATIVE),
    _verb("listen listens listened", "zu|hören hört hat zugehört", Frame.OBJECT,
          objects=_PERSON, government=Case.DATIVE, preposition="to"),
)
BELONG = _verb("belong belongs belonged", "gehören gehört hat gehört", Frame.OBJECT,
               subjects=_GOODS | Kind.VEHICLE | Kind.SMALL_ANIMAL, objects=_PERSON,
               government=Case.DATIVE, preposition="to", only_present=True)

PREPOSITIONAL = tuple(
    _verb(english, german, Frame.OBJECT, objects=objects,
          government=Preposition(english_preposition, german_preposition, case))
    for english, german, english_preposition, german_preposition, case, objects in (
        ("wait waits waited", "warten wartet hat gewartet", "for", "auf", Case.ACCUSATIVE,
         _PERSON | Kind.TRANSPORT),
        ("look looks looked", "auf|passen passt hat aufgepasst", "after", "auf", Case.ACCUSATIVE,
         Kind.CHILD | Kind.ANIMAL),
        ("talk talks talked", "reden redet hat geredet", "about", "über", Case.ACCUSATIVE,
         _PERSON | Kind.TEXT),
        ("laugh laughs laughed", "lachen lacht hat gelacht", "about", "über", Case.ACCUSATIVE,
         _PERSON | Kind.TEXT),
        ("dream dreams dreamt", "träumen träumt hat geträumt", "of", "von", Case.DATIVE,
         _PERSON | Kind.VEHICLE | Kind.CLOTHING),
        ("speak speaks spoken", "sprechen spricht hat gesprochen", "with", "mit", Case.DATIVE,
         _PERSON),
        ("play plays played", "spielen spielt hat gespielt", "with", "mit", Case.DATIVE,
         Kind.CHILD | Kind.SMALL_ANIMAL | Kind.TOY),
        ("dance dances danced", "tanzen tanzt hat getanzt", "with", "mit", Case.DATIVE, _PERSON),
    )
)

TWO_OBJECTS = tuple(
    _verb(english, german, Frame.TWO_OBJECTS, objects=objects)
    for english, german, objects in (
        ("give gives given", "geben gibt hat gegeben", _GOODS | Kind.FLAT | Kind.FRUIT),
        ("show shows shown", "zeigen zeigt hat gezeigt",
         _GOODS | Kind.FLAT | Kind.ANIMAL | Kind.VEHICLE),
        ("bring brings brought", "bringen bringt hat gebracht",
         _GOODS | Kind.FLAT | Kind.FOOD | Kind.DRINK),
        ("send sends sent", "schicken schickt hat geschickt", Kind.THING | Kind.FLAT),
        ("lend lends lent", "leihen leiht hat geliehen", _GOODS | Kind.VEHICLE),
    )
)

SIT = _verb("sit sits sat", "sitzen sitzt hat gesessen", Frame.LOCATION,
            subjects=Kind.PERSON | Kind.SMALL_ANIMAL, only_present=True)
LIE = _verb("lie lies lain", "liegen liegt hat gelegen", Frame.LOCATION,
            subjects=Kind.FLAT | Kind.SMALL_ANIMAL, only_present=True)
STAND = _verb("stand stands stood", "stehen steht hat gestanden", Frame.LOCATION,
              subjects=Kind.UPRIGHT, only_present=True)

DRIVE = _verb("drive drives driven", "fahren fährt ist gefahren", Frame.DIRECTION)
DIRECTION = (
    _verb("go goes gone", "gehen geht ist gegangen", Frame.DIRECTION),
    _verb("run runs run", "rennen rennt ist gerannt", Frame.DIRECTION, subjects=_LIVING),
    DRIVE,
)
CLIMB = _verb("climb climbs climbed", "klettern klettert ist geklettert", Frame.DIRECTION)

LAY = _verb("lay lays laid", "legen legt hat gelegt", Frame.PLACEMENT, objects=Kind.FLAT)
PUT = _verb("put puts put", "stellen stellt hat gestellt", Frame.PLACEMENT, objects=Kind.UPRIGHT)

KNOW = _verb("know knows known", "wissen weiß hat gewusst", Frame.CLAUSE, only_present=True)
ASK = _verb("ask asks asked", "fragen fragt hat gefragt", Frame.CLAUSE)
OPINION = (
    KNOW,
    _verb("say says said", "sagen sagt hat gesagt", Frame.CLAUSE),
    _verb("hope hopes hoped", "hoffen hofft hat gehofft", Frame.CLAUSE),
    _verb("believe believes believed", "glauben glaubt hat geglaubt", Frame.CLAUSE),
)

INFINITIVE = (
    _verb("try tries tried", "versuchen versucht hat versucht", Frame.INFINITIVE),
    _verb("promise promises promised", "versprechen verspricht hat versprochen",
          Frame.INFINITIVE),
)

VERBS = (
    BE, HAVE, RAIN, SNOW, SHINE, *ALONE, *EVENTS, *OBJECT, *STATES, SEARCH, *DATIVE, BELONG,
    *PREPOSITIONAL, *TWO_OBJECTS, SIT, LIE, STAND, *DIRECTION, CLIMB, LAY, PUT, ASK, *OPINION,
    *INFINITIVE,
)
