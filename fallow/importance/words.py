"""Word lists of our own for the heuristic rater, and how text is cut into words.

Nothing here is fitted to data: the lists hold what grammar says (function words), what people say to keep a
conversation going (small talk), and cues for what a person is later asked about (who, when, how many, what
was decided). Words of several languages stand side by side; a word has the same role in each of them or it
is left out.
"""

from __future__ import annotations

import re
from typing import Final

#: Kinds of words, as bits: a word may have several.
COMMON: Final = 1
FIRST_PERSON: Final = 2
SECOND_PERSON: Final = 4
TIME: Final = 8
NUMBER: Final = 16
SMALL_TALK: Final = 32
PREFERENCE: Final = 64
COMMITMENT: Final = 128
DECISION: Final = 256
CORRECTION: Final = 512
ASKING: Final = 1024
EVENT: Final = 2048
#: Says by itself when something was or will be; and what does so beside a word for a time ("last" week).
DATED: Final = 4096
POINTING: Final = 8192

_LISTS: Final[tuple[tuple[int, str], ...]] = (
    # English
    (
        COMMON,
        """
        a an the and or but nor so yet if then else than that this these those there here it its it's he she they
        them their theirs his her hers him one ones who whom whose which what when where why how is am are was were
        be been being do does did doing done don't doesn't didn't have has had having haven't hasn't hadn't will
        would shall should can could may might must can't couldn't won't wouldn't shouldn't isn't aren't wasn't
        weren't not no yes of in on at by for with from to into onto over under about above below between through
        during before after again against up down out off as too very just only also even still ever never always
        often really much many more most less least some any all each every both few lot lots such same other
        another own because while until since although though get gets got getting gotten go goes going gone come
        comes came coming make makes made making take takes took taking see sees seen know knows knew known think
        thinks say says said tell tells told give gives gave let lets let's put way thing things something anything
        everything nothing someone anyone everyone people person time bit kind sort stuff well like likes want wants
        need needs feel feels felt look looks looking seem seems try tries trying tried keep keeps use uses used
        help helps find finds found work works good better best new nice great big little able lets that's there's
        what's who's here's gonna gotta wanna kinda
        """,
    ),
    # German
    (
        COMMON,
        """
        der die das ein eine einen einem einer und oder aber nicht kein keine ist sind war waren sein hat haben
        hatte wird werden wurde kann können muss soll will zu mit von für auf bei nach aus über unter vor durch um
        als wie wenn weil dass auch noch schon nur sehr mehr es er sie man den dem des im am zum zur was wer wo wann
        warum
        """,
    ),
    # French
    (
        COMMON,
        """
        le la les un une des du de et ou mais ne pas est sont était être avoir a ont avait dans sur sous avec sans
        pour par en au aux ce cette ces cet il elle ils elles on que qui quoi dont où quand comment pourquoi plus
        très aussi encore déjà c'est d' l'
        """,
    ),
    # Spanish, Portuguese, Italian
    (
        COMMON,
        """
        el los las una unos unas y o pero no es son era fue ser estar está están haber ha han del al con sin por
        para en lo se su sus qué que quién cuándo dónde cómo muy más también ya os um uma não é são foi com para por
        mais muito il gli uno dei della delle degli che non è sono era con per più molto anche ma come quando dove
        """,
    ),
    # Dutch
    (
        COMMON,
        """
        het een en of maar niet geen is zijn was waren heeft had wordt kan moet met van voor op bij naar uit over
        als ook nog al zeer meer er dat die wat wie waar
        """,
    ),
    # Russian
    (
        COMMON,
        """
        и в во не что он на с со как а то все она так его но да ты к у же вы за бы по только ее её было вот от о из
        ему теперь даже ну ли если уже или ни быть был до нас чтобы для
        """,
    ),
    (
        FIRST_PERSON | COMMON,
        """
        i me my mine myself i'm i've i'd i'll we us our ours ourselves we're we've we'd we'll ich mich mir mein
        meine meinen meiner meinem wir uns unser unsere je j'ai moi mon ma mes nous notre nos yo mi mis nosotros
        nuestro nuestra eu meu minha nós nosso io mio mia miei noi nostro ik mij mijn wij ons onze я меня мне мой
        моя мои мы нам наш наша
        """,
    ),
    (
        SECOND_PERSON | COMMON,
        """
        you your yours yourself you're you've you'd you'll du dich dir dein deine ihr euch tu te toi ton ta tes vous
        votre vos tú ti usted ustedes você jij jou jouw тебя тебе твой вас вам ваш
        """,
    ),
    (
        TIME,
        """
        monday tuesday wednesday thursday friday saturday sunday january february march april june july august
        september october november december today tomorrow yesterday tonight morning evening afternoon noon midnight
        week weeks weekend weekends month months year years day days hour hours minute minutes ago last next since
        spring summer autumn winter birthday anniversary o'clock am pm deadline montag dienstag mittwoch donnerstag
        freitag samstag sonntag heute morgen gestern woche monat jahr uhr lundi mardi mercredi jeudi vendredi samedi
        dimanche hier demain semaine mois année lunes martes miércoles jueves viernes sábado domingo hoy mañana ayer
        semana mes año hoje amanhã ontem oggi domani ieri settimana mese anno maandag dinsdag woensdag donderdag
        vrijdag zaterdag zondag vandaag gisteren сегодня завтра вчера неделя месяц год
        """,
    ),
    (
        DATED,
        """
        yesterday tomorrow tonight ago recently lately gestern vorgestern übermorgen hier demain récemment ayer anoche
        recientemente ontem amanhã ieri domani gisteren onlangs вчера завтра недавно
        """,
    ),
    (
        POINTING,
        """
        last next this past coming letzte letzten letzter letztes nächste nächsten nächster nächstes diese diesen
        dieser dieses dernier dernière prochain prochaine pasado pasada próximo próxima este esta passado passada
        scorso scorsa prossimo prossima questa afgelopen vorige volgende прошлый прошлой прошлом следующий следующей
        """,
    ),
    (
        NUMBER,
        """
        two three four five six seven eight nine ten eleven twelve thirteen fifteen twenty thirty forty fifty
        hundred thousand million dozen couple half first second third twice zwei drei vier fünf sechs sieben acht
        neun zehn deux trois quatre cinq huit neuf dix dos tres cuatro cinco seis siete ocho nueve diez два три
        четыре пять
        """,
    ),
    (
        SMALL_TALK | COMMON,
        """
        hi hey hello bye goodbye thanks thank thx ok okay yeah yep yup sure wow haha hah lol oh ah aw hmm cool
        awesome amazing fantastic wonderful glad congrats congratulations cheers welcome absolutely definitely
        totally exactly indeed agreed right fine sounds please sorry inspiring proud luck hallo tschüss danke bitte
        genau klar prima bonjour salut merci d'accord bravo hola adiós gracias vale genial olá obrigado ciao grazie
        bene hoi dank bedankt привет спасибо ладно хорошо
        """,
    ),
    (
        PREFERENCE,
        """
        love loves loved hate hates hated prefer prefers preferred favorite favourite favorites favourites enjoy
        enjoys enjoyed dislike dislikes allergic vegetarian vegan hobby hobbies fan obsessed dream dreams lieber
        lieblings mag hasse préfère adore déteste prefiero odio encanta люблю
        """,
    ),
    (
        COMMITMENT,
        """
        promise promised remind reminder schedule scheduled appointment plan plans planned planning booked booking
        deadline meeting versprochen termin rendez-vous promets cita prometo
        """,
    ),
    (
        DECISION,
        """
        decide decided decision chose choose chosen agreed approved confirmed signed accepted rejected cancelled
        canceled switched settled entschieden beschlossen décidé choisi decidido elegido решил решили
        """,
    ),
    (
        CORRECTION,
        """
        actually correction instead wrong mistake mistaken meant rather eigentlich falsch plutôt en-fait realmente
        """,
    ),
    (
        EVENT,
        """
        started bought went visited moved joined won lost met married born died graduated adopted received finished
        launched opened attended signed quit hired fired broke built painted wrote read published performed competed
        traveled travelled learned taught volunteered planted baked cooked ran hiked sold paid ordered
        """,
    ),
    (
        ASKING | COMMON,
        """
        what why how when where who which was wann warum wie wer pourquoi comment quand qui qué cuándo cómo dónde
        """,
    ),
)


def _table() -> dict[str, int]:
    kinds: dict[str, int] = {}
    for kind, words in _LISTS:
        for word in words.split():
            kinds[word] = kinds.get(word, 0) | kind
    # A word of one language that carries meaning in another is not common there.
    for word in ("read", "second", "march", "may", "hier", "was", "fan", "al", "die", "ton", "mes", "or", "ma"):
        kinds[word] = kinds.get(word, 0)
    return kinds


#: Kinds of every listed word.
KINDS: Final = _table()

# A word is letters with marks, joined by apostrophes or hyphens; or digits with their separators. Scripts that
# are written without spaces (Han, kana, Thai, Lao, Khmer, Myanmar) are cut into pairs of characters.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD: Final = re.compile(
    rf"[^\W\d_{_UNSPACED}]+(?:['’\-][^\W\d_{_UNSPACED}]+)*|\d+(?:[.,:/\-]\d+)*|[{_UNSPACED}]+",
)
UNSPACED: Final = re.compile(rf"[{_UNSPACED}]")
#: Where a sentence ends, in any of the scripts that have an end.
SENTENCE_END: Final = frozenset(".!?\u2026\u3002\uff01\uff1f\u061f\u0964\n")
QUESTION_MARKS: Final = "?\uff1f\u061f"
#: Words and ends of sentences, in reading order.
TOKEN: Final = re.compile(rf"{WORD.pattern}|[.!?\u2026\u3002\uff01\uff1f\u061f\u0964\n]+")
